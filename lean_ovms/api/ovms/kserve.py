"""KServe's health endpoints: GET /v2/health/live, /v2/health/ready, /v2/models/{id}[/versions/{n}]/ready.

Contract section 1.5; https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol. Ids may
contain "/". Every model is version 1, as graphs are in OVMS.
"""

from __future__ import annotations

import re

from ...errors import ModelNotFound, Unavailable
from ...types import Request, Response
from ..app import App
from ..readiness import require_ready
from ..router import Route, RouteDoc

MODEL_PATH = re.compile(r"/v2/models/(?P<name>.+?)(/versions/(?P<version>[^/]+))?/ready", re.DOTALL)


async def handle_live(request: Request, app: App) -> Response:
    return Response(200)


async def handle_ready(request: Request, app: App) -> Response:
    require_ready(app)
    return Response(200)


async def handle_model_ready(request: Request, app: App) -> Response:
    found = MODEL_PATH.fullmatch(request.path)
    assert found is not None, "the route matches no other paths"
    if found["version"] not in (None, "1"):
        raise ModelNotFound("Model with requested version is not found")
    if not app.registry.get(found["name"]).require_ready().ready:
        raise Unavailable("The model could not be loaded.", code="model_not_loaded")
    return Response(200)


LIVE = RouteDoc(summary="Liveness of the process")
READY = RouteDoc(summary="Readiness of all models")
MODEL_READY = RouteDoc(summary="Readiness of one model", errors=(503,))

ROUTES = [
    Route("GET", "/v2/health/live", handle_live, "open", LIVE, vital=True),
    Route("GET", "/v2/health/ready", handle_ready, "open", READY, vital=True),
    Route("GET", "/v2/models/{id}/ready", handle_model_ready, "models", MODEL_READY, vital=True),
]
