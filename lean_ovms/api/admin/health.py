"""Liveness and readiness: /health and /ping (vLLM), /v2/health/live, /v2/health/ready (OVMS, KServe), /version.

Contract section 1.5. Live: this process answers. Ready: every model is served that can be, and at least one: a model
that cannot be loaded must not take the others out of service.
"""

from __future__ import annotations

from ... import __version__
from ...errors import Unavailable
from ...types import Request, Response
from ..app import App
from ..response import json
from ..router import Route, RouteDoc


async def handle_live(request: Request, app: App) -> Response:
    return Response(200)


async def handle_ready(request: Request, app: App) -> Response:
    if app.draining:
        raise Unavailable("Server is shutting down", code="draining")
    waiting = {m.name: m.state for m in app.registry.models.values() if not m.ready}
    unready = len(waiting) == len(app.registry.models) or any(state != "failed" for state in waiting.values())
    if waiting and unready:
        raise Unavailable("Server is not ready: " + ", ".join(f"{name} is {state}" for name, state in waiting.items()))
    return Response(200)


async def handle_version(request: Request, app: App) -> Response:
    versions = next((m.info.versions for m in app.registry.models.values() if m.ready), {})
    return json({"version": __version__, **versions})


LIVE = RouteDoc(summary="The process answers")
READY = RouteDoc(summary="Every model is served that can be")
VERSION = RouteDoc(summary="Versions of the server and of what it runs on", answer="Version")

ROUTES = [
    Route("GET", "/health", handle_ready, "open", READY),
    Route("GET", "/ping", handle_live, "open", LIVE),
    Route("POST", "/ping", handle_live, "open", LIVE),
    Route("GET", "/v2/health/live", handle_live, "open", LIVE),
    Route("GET", "/v2/health/ready", handle_ready, "open", READY),
    Route("GET", "/version", handle_version, "open", VERSION),
]
