"""From a method and path to a handler, whose module is imported by its first request."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType, ModuleType

from ..manifest import BASES, Route
from ..types import Request
from .routes import compiled
from .services import Handler

MAX_PARTS = 4
"""The last parts of an unknown path that are compared with known paths; a client may send thousands."""
MAX_LENGTH, NEAR = 60, 0.9
"""The longest path that is corrected, and how similar a known one must be (difflib): two of twenty may differ."""
_handlers: dict[tuple[str, str], Handler] = {}
"""The handlers whose modules are imported, by their package and their name in the table of routes."""


async def load(route: Route) -> Handler:
    """The handler of a route. The first call imports its module in a thread."""
    handler = _handlers.get((route.package, route.handler))
    return handler if handler is not None else await asyncio.to_thread(imported, route)


def imported(route: Route) -> Handler:
    """The handler of a route, its module imported."""
    handler: Handler = getattr(module_of(route), route.function)
    _handlers[route.package, route.handler] = handler
    return handler


def module_of(route: Route) -> ModuleType:
    """The module of a handler, imported."""
    return importlib.import_module(route.module)


class Table:
    """Look up a route by method and path. Of several matching patterns, the one with most literal text wins.

    A trailing slash is ignored: some clients send one, and FastAPI (vLLM) redirects.
    """

    def __init__(self, routes: Iterable[Route], ports: Mapping[str, int] = MappingProxyType({})) -> None:
        """Makes the table.

        Args:
            routes: each under one path.
            ports: the further ports on which the server listens, by their options.
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
        """The routes of a path by method; empty if there are none."""
        found = self._exact.get(path) or self._exact.get(path.removesuffix("/"))
        if found is None:
            found = next((methods for pattern, methods in self._ordered if pattern.fullmatch(path)), {})
        return found

    def variant(self, route: Route, request: Request) -> Route:
        """The route that takes this request instead of `route`, by a header or its port; `route` if there is none."""
        others = self._variants.get((route.method, route.path), ())
        return next((other for other in others if self._takes(other, request)), route)

    def _takes(self, variant: Route, request: Request) -> bool:
        """Returns whether a variant takes this request."""
        if variant.header:
            return variant.header_part in request.headers.get(variant.header, "") and variant.header in request.headers
        port = self._ports[variant.port]
        return bool(port) and request.headers.get("host", "").endswith(f":{port}")

    def suggest(self, path: str) -> str:
        """A known path with the same end as this unknown one (a wrong base URL), or nearly; "" if there is none."""
        parts = [part for part in path.split("/") if part][-MAX_PARTS:]
        for tail in ("/" + "/".join(parts[start:]) for start in range(len(parts))):
            known = [base + tail for base in ("", BASES[0]) if base + tail in self._exact]
            if found := known or self._nearest(tail):
                return found[0]
        return ""

    def _nearest(self, path: str) -> list[str]:
        """The known path that this one is a misspelling of, if any; of the same API, so of the same first part."""
        if len(path) > MAX_LENGTH:
            return []
        slashes, first = path.count("/"), path[: path.find("/", 1) + 1]
        alike = [known for known in self._exact if known.count("/") == slashes and known.startswith(first)]
        return get_close_matches(path, alike, 1, NEAR)
