"""GET /load: the number of requests that the models are processing, for load balancers.

vLLM reports it with --enable-server-load-tracking. Each prompt of a request counts, and so does each request to a model
that does not generate text.
"""

from __future__ import annotations

from ....api.fields import RouteDoc
from ....api.response import json
from ....api.services import Services
from ....types import Request, Response


@RouteDoc("The number of unfinished prompts and other requests")
async def handle(request: Request, services: Services) -> Response:
    return json({"server_load": sum(len(model.in_flight) for model in services.registry.models.values())})
