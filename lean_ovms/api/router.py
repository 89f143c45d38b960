"""The table of routes, which are those of the features, and the way from a method and path to a handler.

An endpoint is one row, and the handler that the row names, whose module is imported by its first request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType

from ..composition import Composition, compose
from ..config import Config
from ..manifest import BASES, Route, named
from ..observability.records import RequestRecord
from ..types import Request
from .services import Handler

DOCS = "/docs"
"""The page that says what is served, if the server has it."""


@cache
def every(composition: Composition | None = None) -> tuple[Route, ...]:
    """Returns each route of some features under each of its bases, as a route with that whole path.

    Args:
        composition: The features; None: all that there are.
    """
    routes = (composition or compose()).routes
    return tuple(replace(row, path=base + row.path, bases=("",)) for row in routes for base in row.bases)


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


def follows_ovms(request: Request | RequestRecord) -> bool:
    """Returns whether the path is one of OVMS's."""
    return request.path.startswith("/v3/")


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression of a path with "{id}"; a slash at the end of the path is no part of the id."""
    *parts, last = map(re.escape, pattern.split("{id}"))
    return re.compile("(.+)".join(parts) + ("(.+)" if last else "(.+?)") + last + "/?", re.DOTALL)


MAX_PARTS = 4
"""The last parts of an unknown path that are compared with known paths; a client may send thousands."""
MAX_LENGTH, NEAR = 60, 0.9
"""The longest path that is corrected, and how similar a known one must be (difflib): two of twenty may differ."""
_handlers: dict[tuple[str, str], Handler] = {}
"""The handlers whose modules are imported, by their package and their name in the table of routes."""


async def load(route: Route) -> Handler:
    """Returns the handler of a route. The first call imports its module in a thread."""
    handler = _handlers.get((route.package, route.handler))
    return handler if handler is not None else await asyncio.to_thread(imported, route)


def imported(route: Route) -> Handler:
    """Returns the handler of a route, its module imported."""
    handler: Handler = named(route.package, route.handler)
    _handlers[route.package, route.handler] = handler
    return handler


class Table:
    """Finds the route of a method and path. Of several patterns that match, the one with most literal text wins.

    A trailing slash is ignored: some clients send one, and FastAPI (vLLM) redirects.
    """

    def __init__(self, routes: Iterable[Route], ports: Mapping[str, int] = MappingProxyType({})) -> None:
        """Makes the table.

        Args:
            routes: Each under one path.
            ports: The further ports on which the server listens, by their options.
        """
        self._ports = ports
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[str, dict[str, Route]] = {}
        self._variants: dict[tuple[str, str], list[Route]] = {}
        for route in routes:
            if route.variant:
                self._variants.setdefault((route.method, route.path), []).append(route)
                continue
            methods = (self._patterns if "{id}" in route.path else self._exact).setdefault(route.path, {})
            if route.method in methods:
                raise AssertionError(f"two handlers for {route.method} {route.path}")
            methods[route.method] = route
        for variants in self._variants.values():
            variants.sort(key=lambda one: one.port)  # what a client asks for counts more than where it asks
        longest = sorted(self._patterns, key=lambda pattern: len(pattern.replace("{id}", "")), reverse=True)
        self._ordered = [(compiled(pattern), self._patterns[pattern]) for pattern in longest]

    def methods(self, path: str) -> dict[str, Route]:
        """Returns the routes of a path by method; empty if there are none."""
        found = self._exact.get(path) or self._exact.get(path.removesuffix("/"))
        if found is None:
            found = next((methods for pattern, methods in self._ordered if pattern.fullmatch(path)), {})
        return found

    def variant(self, route: Route, request: Request) -> Route:
        """Returns the route that takes this request instead of `route`, by a header or its port; `route` if there is
        none.
        """
        others = self._variants.get((route.method, route.path), ())
        return next((other for other in others if self._takes(other, request)), route)

    def _takes(self, variant: Route, request: Request) -> bool:
        """Returns whether a variant takes this request."""
        if variant.header:
            return variant.header_part in request.headers.get(variant.header, "") and variant.header in request.headers
        port = self._ports[variant.port]
        return bool(port) and request.headers.get("host", "").endswith(f":{port}")

    def suggest(self, path: str) -> str:
        """Returns a known path with the same end as this unknown one (a wrong base URL), or nearly; "" if there is
        none.
        """
        parts = [part for part in path.split("/") if part][-MAX_PARTS:]
        for tail in ("/" + "/".join(parts[start:]) for start in range(len(parts))):
            known = [base + tail for base in ("", BASES[0]) if base + tail in self._exact]
            if found := known or self._nearest(tail):
                return found[0]
        return ""

    def _nearest(self, path: str) -> list[str]:
        """Returns the known path that this one is a misspelling of, if any; of the same API, so of the same first
        part.
        """
        if len(path) > MAX_LENGTH:
            return []
        slashes, first = path.count("/"), path[: path.find("/", 1) + 1]
        alike = [known for known in self._exact if known.count("/") == slashes and known.startswith(first)]
        return get_close_matches(path, alike, 1, NEAR)
