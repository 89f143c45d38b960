"""The option of the page."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.options import Options, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WebPageOptions(Options):
    """Whether there is a page."""

    web_page: bool = option(
        True, "serve a page for browsers at /, to chat and to see the server's load", group="behaviour"
    )
