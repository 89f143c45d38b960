"""GET /v2/models/{id}[/versions/{n}]/ready: KServe's question whether one model is served.

Contract section 1.5; https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol. Ids may hold
"/". Every model is version 1, as graphs are in OVMS.
"""

from __future__ import annotations

import re

from ...errors import ModelNotFound
from ...types import Request, Response
from ..app import App
from ..router import Route, RouteDoc

PATH = re.compile(r"/v2/models/(?P<name>.+?)(/versions/(?P<version>[^/]+))?/ready", re.DOTALL)


async def handle(request: Request, app: App) -> Response:
    found = PATH.fullmatch(request.path)
    assert found is not None, "the route's pattern is no wider"
    if found["version"] not in (None, "1"):
        raise ModelNotFound("Model with requested version is not found")
    app.registry.get(found["name"]).require_ready()
    return Response(200)


ROUTES = [
    Route("GET", "/v2/models/{id}/ready", handle, "models", RouteDoc(summary="One model is served", errors=(503,)))
]
