"""The manifest of the page."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option
from ...manifest import Feature, Route


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WebPageOptions(Options):
    """The option that switches the page on or off."""

    web_page: bool = option(True, "serve a web page at /, to chat and to see the server's load", group="behaviour")


FEATURE = Feature(
    name="web_page",
    summary="serves a web page to chat and to see what the server does",
    title="The page",
    options=WebPageOptions,
    flags="flags.txt",
    routes=(
        Route(
            "GET",
            "/",
            "api:handle_root",
            auth="open",
            header="accept",
            header_part="text/html",
            only_with="web_page",
            page=True,
        ),
        Route("GET", "/web/actions", "api:handle_actions", auth="open", only_with="web_page"),
        Route("GET", "/web/{id}", "api:handle_file", auth="open", only_with="web_page"),
    ),
)
