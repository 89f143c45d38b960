"""The manifest of the API's description."""

from __future__ import annotations

from ...manifest import Feature, Route

FEATURE = Feature(
    name="docs_page",
    summary="describes the API as an OpenAPI document, and serves a page to read and try it",
    title="The description of the API",
    flags="flags.txt",
    routes=(
        Route("GET", "/openapi.json", "api:handle", auth="models"),
        Route("GET", "/docs", "api:handle_page", auth="open", page=True),
    ),
)
