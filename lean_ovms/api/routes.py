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
    """method and path of a handler. path may hold one "{id}", which takes any text, slashes included.

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
        self._around: dict[tuple[str, str], dict[str, Route]] = {}
        for route in routes:
            before, mark, after = route.path.partition("{id}")
            methods = self._around.setdefault((before, after), {}) if mark else self._exact.setdefault(before, {})
            if route.method in methods:
                raise AssertionError(f"two handlers for {route.method} {route.path}")
            methods[route.method] = route

    def methods(self, path: str) -> dict[str, Route]:
        """The routes of a path by method; empty when there are none."""
        found = self._exact.get(path)
        if found is None:
            fitting = [key for key in self._around if _between(path, *key)]
            found = self._around[max(fitting, key=lambda key: len(key[1]))] if fitting else {}
        return found


def id_in(path: str, pattern: str) -> str:
    """What stands in a path for the "{id}" of a pattern that is served under the bases."""
    before, _, after = pattern.partition("{id}")
    return next(
        found for base in sorted(BASES, key=len, reverse=True) if (found := _between(path, base + before, after))
    )


def _between(path: str, before: str, after: str) -> str:
    """The text between the two, "" if they do not fit."""
    if len(path) <= len(before) + len(after) or not path.startswith(before) or not path.endswith(after):
        return ""
    return path[len(before) : len(path) - len(after)]
