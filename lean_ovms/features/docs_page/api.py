"""GET /openapi.json: the OpenAPI 3.1 document of this server, and GET /docs: a page to read and try it, offline.

The document names the served models, so it needs the API key if their list does. The page contains no data of this
server and never needs the key.
https://spec.openapis.org/oas/v3.1.1
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from pathlib import Path

import orjson

from ...api.fields import RouteDoc
from ...api.response import json_bytes
from ...api.services import Services
from ...composition import Composition
from ...types import Request, Response
from .content_security import hash_of
from .openapi import document

PAGE = Path(__file__).with_name("docs.html")
MOST_RENDERED = 8
"""The number of lists of models whose documents are kept."""
SAFETY = (
    "default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The page may run its own script only, make no HTML of text, connect to this server only, and be in no frame."""


@RouteDoc("The OpenAPI document of this server")
async def handle(request: Request, services: Services) -> Response:
    models = tuple(name for name, model in services.registry.visible.items() if model.ready)
    config = services.config
    work = partial(_rendered, models, config.composition, key=services.keys.required, server=config.root_path or "/")
    return json_bytes(await services.offload.run(0, work))


@RouteDoc("A page to read and try the API", answer="text/html")
async def handle_page(request: Request, services: Services) -> Response:
    content, safety = _page()
    headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", safety)]
    return Response(200, headers, content)


@lru_cache(MOST_RENDERED)
def _rendered(models: tuple[str, ...], composition: Composition, *, key: bool, server: str) -> bytes:
    """Renders the document, for which every endpoint is imported. It takes 5 ms."""
    return orjson.dumps(document(models, key=key, server=server, composition=composition))


@cache
def _page() -> tuple[bytes, str]:
    """Returns the page, and its content security policy, which names its style and its script by their hashes."""
    content = PAGE.read_bytes()
    return content, SAFETY.format(style=hash_of("style", content), script=hash_of("script", content))
