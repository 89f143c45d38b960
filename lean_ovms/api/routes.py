"""The table of routes, collected from the modules of endpoints/: a new endpoint is one new file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..shapes import Request, Response

if TYPE_CHECKING:
    from .app import App

Handler = Callable[[Request, "App"], Awaitable[Response]]

BASES = ("/v1", "/v3", "/v3/v1")
"""Where the generative API lives: OpenAI's and vLLM's, OVMS's, and OVMS's older spelling."""


@dataclass(frozen=True, slots=True)
class Route:
    """method and path of a handler. path may end in "{id}", which takes the rest, slashes included.

    guard: "key" needs the API key, "models" only with --protect_models, "open" never.
    """

    method: str
    path: str
    handle: Handler
    guard: str = "key"


def under_bases(method: str, path: str, handle: Handler, guard: str = "key") -> list[Route]:
    """One handler under every base."""
    return [Route(method, base + path, handle, guard) for base in BASES]


def collect() -> list[Route]:
    """Every route of every endpoint module."""
    from . import endpoints  # the modules import this file

    found: list[Route] = []
    for module in sorted(pkgutil.iter_modules(endpoints.__path__), key=lambda m: m.name):
        found += importlib.import_module(f"{endpoints.__name__}.{module.name}").ROUTES
    return found


class Table:
    """Look up a handler by method and path."""

    def __init__(self, routes: list[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._rest: dict[str, dict[str, Route]] = {}
        for route in routes:
            where, path = (
                (self._rest, route.path[: -len("{id}")]) if route.path.endswith("{id}") else (self._exact, route.path)
            )
            methods = where.setdefault(path, {})
            if route.method in methods:
                raise AssertionError(f"two handlers for {route.method} {route.path}")
            methods[route.method] = route

    def methods(self, path: str) -> dict[str, Route]:
        """The routes of a path by method; empty when there are none."""
        found = self._exact.get(path)
        if found is None:
            prefix = next((p for p in self._rest if path.startswith(p) and len(path) > len(p)), None)
            found = {} if prefix is None else self._rest[prefix]
        return found
