"""GET /: a JSON object that describes the server."""

from __future__ import annotations

from ..._version import __version__
from ...api import router
from ...api.fields import RouteDoc
from ...api.response import json
from ...api.services import Services
from ...types import Request, Response


@RouteDoc("Name and version of the server")
async def handle(request: Request, services: Services) -> Response:
    docs = {"docs": router.DOCS} if router.DOCS in router.pages(services.config) else {}
    return json({"name": "lean_ovms", "version": __version__, **docs})
