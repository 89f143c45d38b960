"""KServe's server metadata and health: GET /v2, /v2/health/live and ready, /v2/models/{id}[/versions/{n}]/ready.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol. Ids may contain "/". Every model has
version 1, like graphs in OVMS.
"""

from __future__ import annotations

from ...._version import __version__
from ....api.fields import RouteDoc
from ....api.response import json
from ....api.services import Services
from ....errors import ModelNotFound, Unavailable
from ....observability.records import log_quietly
from ....types import Request, Response


@RouteDoc("Name and version of the server")
async def handle_server(request: Request, services: Services) -> Response:
    return json({"name": "lean_ovms", "version": __version__, "extensions": []})


@RouteDoc("Liveness of the process", answer="")
async def handle_live(request: Request, services: Services) -> Response:
    return Response(200)


@RouteDoc("Readiness of all models", answer="")
async def handle_ready(request: Request, services: Services) -> Response:
    services.require_ready()
    return Response(200)


@RouteDoc("Readiness of one model", errors=(503,), answer="")
async def handle_model_ready(request: Request, services: Services) -> Response:
    [whole] = request.ids
    name, mark, version = whole.rpartition("/versions/")
    if not mark or "/" in version:
        name, version = whole, "1"
    if version != "1":
        raise ModelNotFound("Model with requested version is not found")
    model = services.registry.get(name)
    if model.state == "loading":
        log_quietly()  # as while the server is starting
    if not model.require_ready().ready:
        raise Unavailable("The model could not be loaded.", code="model_not_loaded")
    return Response(200)
