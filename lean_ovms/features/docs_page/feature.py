"""The manifest of the documentation."""

from __future__ import annotations

from ...manifest import Command, Feature, PageRow, Route

FEATURE = Feature(
    name="docs_page",
    summary="serves the documentation, and an OpenAPI document with a page to read and try the API",
    title="The documentation",
    needs=("admin",),
    flags="flags.txt",
    commands=(Command("docs", "[URL] [WORD ...]", "open the documentation, or search it", "command:main"),),
    routes=(
        Route("GET", "/openapi.json", "api:handle", auth="models"),
        Route("GET", "/docs", "api:handle_page", auth="open", page=True),
        Route("GET", "/docs/", "guide:handle_start", auth="open"),
        Route("GET", "/docs/search", "guide:handle_search", auth="open"),
        Route("GET", "/docs/{id}", "guide:handle_page", auth="open"),
    ),
    page=(PageRow("api", "/docs"), PageRow("documentation", "/docs/")),
)
