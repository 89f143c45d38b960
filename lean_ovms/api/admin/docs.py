"""GET /openapi.json: the OpenAPI 3.1 document of this server, and GET /docs: a page to read and try it, offline.

The document names the served models, so it needs the API key when their list does; the page contains no data of this
server and never needs it.
https://spec.openapis.org/oas/v3.1.1
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

from ...types import Request, Response
from ..app import App
from ..openapi import document
from ..response import json
from ..router import Route, RouteDoc, collect

PAGE = Path(__file__).parents[1] / "docs.html"
SAFETY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The page may connect to this server only, and be in no frame."""


async def handle(request: Request, app: App) -> Response:
    models = [name for name, model in app.registry.models.items() if model.ready]
    routes = await asyncio.to_thread(collect)  # imports every endpoint
    return json(document(routes, models, key=bool(app.config.api_key), server=app.config.root_path or "/"))


async def handle_page(request: Request, app: App) -> Response:
    headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", SAFETY)]
    return Response(200, headers, _page())


ROUTES = [
    Route("GET", "/openapi.json", handle, "models", RouteDoc(summary="This document", answer="application/json")),
    Route("GET", "/docs", handle_page, "open", RouteDoc(summary="A page to read and try the API", answer="text/html")),
]


@cache
def _page() -> bytes:
    return PAGE.read_bytes()
