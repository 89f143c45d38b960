"""The table of routes: those of the core, and with them those of the features.

An endpoint is one row, and the handler that the row names, whose module is imported by its first request (router.py).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from ..composition import Composition, compose
from ..config import Config
from ..manifest import Route
from ..observability.records import RequestRecord
from ..types import Request

# fmt: off
ROUTES: tuple[Route, ...] = (
    # admin
    Route("GET", "/health", "admin.health:handle_health", ("", "/v1"), auth="open", vital=True),
    Route("GET", "/ping", "admin.health:handle_ping", auth="open", vital=True),
    Route("POST", "/ping", "admin.health:handle_ping", auth="open"),
    Route("GET", "/version", "admin.health:handle_version", auth="open"),
    Route("GET", "/metrics", "admin.metrics:handle", auth="metrics", vital=True),
    Route("GET", "/", "admin.root:handle", auth="open"),
    Route("GET", "/server_info", "admin.server_info:handle", auth="admin"),
)
"""The routes of the core."""
# fmt: on
DOCS = "/docs"
"""The page that says what is served, if the server has it."""


def table(composition: Composition | None = None) -> tuple[Route, ...]:
    """Returns the routes of the core and of the features. composition: the features; None: all."""
    return ROUTES + (composition or compose()).routes


@cache
def every(composition: Composition | None = None) -> tuple[Route, ...]:
    """Returns each route under each of its bases, as a route with that whole path."""
    return tuple(replace(row, path=base + row.path, bases=("",)) for row in table(composition) for base in row.bases)


@cache
def paths(composition: Composition) -> frozenset[str]:
    """Returns the path of each route under each of its bases, options aside."""
    return frozenset(row.path for row in every(composition))


def served(config: Config) -> tuple[Route, ...]:
    """Returns the routes that a server with these options has, each under each of its bases."""
    return tuple(row for row in every(config.composition) if not row.only_with or config.value(row.only_with))


def pages(config: Config) -> tuple[str, ...]:
    """Returns the paths of the pages for people."""
    return tuple(row.path for row in served(config) if row.page)


def ids_of(route: Route, path: str) -> tuple[str, ...]:
    """Returns the text for each "{id}" in a path that this route matches."""
    found = compiled(route.path).fullmatch(path) if "{id}" in route.path else None
    return () if found is None else found.groups()


def modules(composition: Composition | None = None) -> list[str]:
    """Returns the modules of the handlers, each once."""
    return list(dict.fromkeys(route.module for route in table(composition)))


def follows_ovms(request: Request | RequestRecord) -> bool:
    """Whether the path is one of OVMS's."""
    return request.path.startswith("/v3/")


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression of a path with "{id}"; a slash at the end of the path is no part of the id."""
    *parts, last = map(re.escape, pattern.split("{id}"))
    return re.compile("(.+)".join(parts) + ("(.+)" if last else "(.+?)") + last + "/?", re.DOTALL)
