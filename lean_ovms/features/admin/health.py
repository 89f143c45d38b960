"""GET /health (readiness), GET and POST /ping (liveness) and GET /version, as vLLM has them.

GET and HEAD / are for agents that check whether there is a server at all.
"""

from __future__ import annotations

from ..._version import __version__
from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services
from ...observability.records import log_quietly
from ...types import Request, Response


@RouteDoc("Readiness of all models")
async def handle_health(request: Request, services: Services) -> Response:
    services.require_ready()
    return json({"status": "ok"})  # llama.cpp's clients read this body


@RouteDoc("Liveness of the process", answer="")
async def handle_ping(request: Request, services: Services) -> Response:
    log_quietly()  # a POST is not a vital request, but clients ask as often
    return Response(200)


@RouteDoc("Versions of the server and its runtime")
async def handle_version(request: Request, services: Services) -> Response:
    versions = next((m.info.versions for m in services.registry.models.values() if m.known), {})
    return json({"version": __version__, **versions})
