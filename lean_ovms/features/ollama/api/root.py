"""GET / on --ollama_port: Ollama's text, by which some of its clients know a server."""

from __future__ import annotations

from ....api.fields import RouteDoc
from ....api.services import Services
from ....types import Request, Response


@RouteDoc("Ollama's text, on --ollama_port", answer="text/plain")
async def handle(request: Request, services: Services) -> Response:
    return Response(200, [("Content-Type", "text/plain; charset=utf-8")], b"Ollama is running")
