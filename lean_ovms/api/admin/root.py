"""GET /: what the server is, as a JSON object; on --ollama_port Ollama's text, by which some of its clients know it."""

from __future__ import annotations

from ... import __version__
from ...types import Request, Response
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services


@RouteDoc("Name and version of the server")
async def handle(request: Request, services: Services) -> Response:
    port = services.config.ollama_port
    if port and request.headers.get("host", "").endswith(f":{port}"):
        return Response(200, [("Content-Type", "text/plain; charset=utf-8")], b"Ollama is running")
    return json({"name": "lean_ovms", "version": __version__, "docs": "/docs"})
