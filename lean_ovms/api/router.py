"""From a method and path to a handler, whose module is imported by its first request."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType

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

    A trailing slash is ignored in a path without an "{id}": some clients send one, and FastAPI (vLLM) redirects.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[str, dict[str, Route]] = {}
        self._variants: dict[tuple[str, str], Route] = {}
        for route in routes:
            if route.header:
                self._variants[route.method, route.path] = route
                continue
            methods = (self._patterns if "{id}" in route.path else self._exact).setdefault(route.path, {})
            if route.method in methods:
                raise AssertionError(f"two handlers for {route.method} {route.path}")
            methods[route.method] = route
        longest = sorted(self._patterns, key=lambda pattern: len(pattern.replace("{id}", "")), reverse=True)
        self._ordered = [(compiled(pattern), self._patterns[pattern]) for pattern in longest]

    def methods(self, path: str) -> dict[str, Route]:
        """The routes of a path by method; empty if there are none."""
        found = self._exact.get(path) or self._exact.get(path.removesuffix("/"))
        if found is None:
            found = next((methods for pattern, methods in self._ordered if pattern.fullmatch(path)), {})
        return found

    def variant(self, route: Route, request: Request) -> Route:
        """The route that takes this request instead of `route` because of a header; `route` if there is none."""
        other = self._variants.get((route.method, route.path))
        if other is None or other.header_part not in (request.headers.get(other.header) or ""):
            return route
        return other if other.header in request.headers else route

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
