"""GET /health (ready), GET and POST /ping (live) and GET /version: vLLM's paths. KServe's are in api/ovms/kserve.py.

Contract section 1.5. GET and HEAD / answer agents that look whether there is a server at all.
"""

from __future__ import annotations

from ... import __version__
from ...types import Request, Response
from ..app import App
from ..readiness import require_ready
from ..response import json
from ..router import Route, RouteDoc


async def handle_health(request: Request, app: App) -> Response:
    require_ready(app)
    return json({"status": "ok"})  # llama.cpp's clients read it


async def handle_ping(request: Request, app: App) -> Response:
    return Response(200)


async def handle_version(request: Request, app: App) -> Response:
    versions = next((m.info.versions for m in app.registry.models.values() if m.known), {})
    return json({"version": __version__, **versions})


HEALTH = RouteDoc(summary="Readiness of all models", answer="Health")
PING = RouteDoc(summary="Liveness of the process")
VERSION = RouteDoc(summary="Versions of the server and its runtime", answer="Version")

ROUTES = [
    Route("GET", "/health", handle_health, "open", HEALTH, vital=True),
    Route("GET", "/v1/health", handle_health, "open", HEALTH, vital=True),
    Route("GET", "/ping", handle_ping, "open", PING, vital=True),
    Route("POST", "/ping", handle_ping, "open", PING),
    Route("GET", "/version", handle_version, "open", VERSION),
]
