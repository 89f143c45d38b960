"""GET /load: what the models have to do now, as vLLM reports it with --enable-server-load-tracking; for balancers.

Each prompt of a request counts, and each request to a model that generates no text.
"""

from __future__ import annotations

from ...types import Request, Response
from ..app import App
from ..response import json
from ..router import Route, RouteDoc


async def handle(request: Request, app: App) -> Response:
    return json({"server_load": sum(len(model.in_flight) for model in app.registry.models.values())})


DOC = RouteDoc(summary="Prompts and other requests that are not finished", answer="Load")
ROUTES = [Route("GET", "/load", handle, "open", DOC, vital=True)]
