"""The routes of all features, and the table that finds the handler for a method and path.

An endpoint is one row that names its handler. The handler's module is imported by the first request for it.
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
"""The path of the page that documents the API, if the server has this page."""


@cache
def every(composition: Composition | None = None) -> tuple[Route, ...]:
    """Returns the routes of some features (by default all) with their whole paths: one route for each base path."""
    routes = (composition or compose()).routes
    return tuple(replace(row, path=base + row.path, bases=("",)) for row in routes for base in row.bases)


@cache
def paths(composition: Composition) -> frozenset[str]:
    """Returns the whole paths of all routes, whatever options enable them."""
    return frozenset(row.path for row in every(composition))


def served(config: Config) -> tuple[Route, ...]:
    """Returns the routes that a server with these options has, with their whole paths."""
    return tuple(row for row in every(config.composition) if not row.only_with or config.value(row.only_with))


def pages(config: Config) -> tuple[str, ...]:
    """Returns the paths of the pages that people open in a browser."""
    return tuple(row.path for row in served(config) if row.page)


def ids_of(route: Route, path: str) -> tuple[str, ...]:
    """Returns the texts at the places of "{id}" in a path that matches the route."""
    found = compiled(route.path).fullmatch(path) if "{id}" in route.path else None
    return () if found is None else found.groups()


def follows_ovms(request: Request | RequestRecord) -> bool:
    """Returns whether the path of a request belongs to OVMS's API."""
    return request.path.startswith("/v3/")


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression for a path with "{id}". A slash at the end of a path is not a part of the id."""
    *parts, last = map(re.escape, pattern.split("{id}"))
    return re.compile("(.+)".join(parts) + ("(.+)" if last else "(.+?)") + last + "/?", re.DOTALL)


MAX_PARTS = 4
"""The number of last parts of an unknown path that are compared with known paths; a client may send thousands."""
MAX_LENGTH, NEAR = 60, 0.9
"""The greatest length of a path for which a correction is suggested, and the least similarity (difflib's ratio) of the
known path: two of twenty characters may differ."""
_handlers: dict[tuple[str, str], Handler] = {}
"""The handlers whose modules are imported, by their package and their name in the table of routes."""


async def load(route: Route) -> Handler:
    """Returns the handler of a route. The first call for it imports its module in a thread."""
    handler = _handlers.get((route.package, route.handler))
    return handler if handler is not None else await asyncio.to_thread(imported, route)


def imported(route: Route) -> Handler:
    """Returns the handler of a route, importing its module if necessary."""
    handler: Handler = named(route.package, route.handler)
    _handlers[route.package, route.handler] = handler
    return handler


class Table:
    """Finds the route for a method and path. Of several patterns, the one with the most literal text matches.

    A trailing slash is ignored: some clients send one, and FastAPI (vLLM) redirects to the path without it.
    """

    def __init__(self, routes: Iterable[Route], ports: Mapping[str, int] = MappingProxyType({})) -> None:
        """Builds the table of routes with whole paths; `ports` are the further ports by the options that set them."""
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
            variants.sort(key=lambda one: one.port)  # the path of a request counts more than its port
        longest = sorted(self._patterns, key=lambda pattern: len(pattern.replace("{id}", "")), reverse=True)
        self._ordered = [(compiled(pattern), self._patterns[pattern]) for pattern in longest]

    def methods(self, path: str) -> dict[str, Route]:
        """Returns the routes of a path by method; empty if the path is unknown."""
        found = self._exact.get(path) or self._exact.get(path.removesuffix("/"))
        if found is None:
            found = next((methods for pattern, methods in self._ordered if pattern.fullmatch(path)), {})
        return found

    def variant(self, route: Route, request: Request) -> Route:
        """Returns the variant of a route that a header or the port of the request selects, or the route itself."""
        others = self._variants.get((route.method, route.path), ())
        return next((other for other in others if self._takes(other, request)), route)

    def _takes(self, variant: Route, request: Request) -> bool:
        """Returns whether a request selects this variant of a route."""
        if variant.header:
            return variant.header_part in request.headers.get(variant.header, "") and variant.header in request.headers
        port = self._ports[variant.port]
        return bool(port) and request.headers.get("host", "").endswith(f":{port}")

    def suggest(self, path: str) -> str:
        """Suggests a known path with the same end, or with few other letters, for an unknown one; or ""."""
        parts = [part for part in path.split("/") if part][-MAX_PARTS:]
        for tail in ("/" + "/".join(parts[start:]) for start in range(len(parts))):
            known = [base + tail for base in ("", BASES[0]) if base + tail in self._exact]
            if found := known or self._nearest(tail):
                return found[0]
        return ""

    def _nearest(self, path: str) -> list[str]:
        """Returns the known path that this one may be a misspelling of, in a list that is empty if there is none.

        Only paths with the same first part, which are of the same API, are compared.
        """
        if len(path) > MAX_LENGTH:
            return []
        slashes, first = path.count("/"), path[: path.find("/", 1) + 1]
        alike = [known for known in self._exact if known.count("/") == slashes and known.startswith(first)]
        return get_close_matches(path, alike, 1, NEAR)
