"""GET /: what the server is, as a JSON object."""

from __future__ import annotations

from ... import __version__
from ...types import Request, Response
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services


@RouteDoc("Name and version of the server")
async def handle(request: Request, services: Services) -> Response:
    return json({"name": "lean_ovms", "version": __version__, "docs": "/docs"})
