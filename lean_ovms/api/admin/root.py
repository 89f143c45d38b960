"""GET /: what the server is, as a JSON object."""

from __future__ import annotations

from ..._version import __version__
from ...types import Request, Response
from .. import routes
from ..response import json
from ..route_doc import RouteDoc
from ..services import Services


@RouteDoc("Name and version of the server")
async def handle(request: Request, services: Services) -> Response:
    docs = {"docs": routes.DOCS} if routes.DOCS in routes.pages(services.config) else {}
    return json({"name": "lean_ovms", "version": __version__, **docs})
