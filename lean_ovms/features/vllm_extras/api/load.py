"""GET /load: what the models have to do now, as vLLM reports it with --enable-server-load-tracking; for balancers.

Each prompt of a request counts, and each request to a model that generates no text.
"""

from __future__ import annotations

from ....api.fields import RouteDoc
from ....api.response import json
from ....api.services import Services
from ....types import Request, Response


@RouteDoc("Prompts and other requests that are not finished")
async def handle(request: Request, services: Services) -> Response:
    return json({"server_load": sum(len(model.in_flight) for model in services.registry.models.values())})
