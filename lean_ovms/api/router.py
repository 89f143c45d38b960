"""The table of routes, collected from the packages of the APIs: a new endpoint is one new file."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..types import Json, Request, Response
from .fields import Field

if TYPE_CHECKING:
    from .app import App

Handler = Callable[[Request, "App"], Awaitable[Response]]

BASES = ("/v1", "/v3", "/v3/v1")
"""Prefixes of the generative API: OpenAI's and vLLM's, OVMS's, and OVMS's older one."""


def follows_ovms(request: Request) -> bool:
    """Whether the path is one of OVMS's."""
    return request.path.startswith("/v3/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDoc:
    """A route's description in the OpenAPI document.

    body, query: the fields that its handler reads; form: the body is multipart/form-data. answer: a name in
    schemas.ANSWERS, or a media type. chunks: the same for the events of a stream. media: further media types of the
    answer. errors: statuses in addition to those that follow from the other fields. rules: JSON Schema keywords for the
    whole body. upgrade: it opens a WebSocket.
    """

    summary: str
    body: tuple[Field, ...] = ()
    form: bool = False
    body_optional: bool = False
    query: tuple[Field, ...] = ()
    answer: str = ""
    chunks: str = ""
    media: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    rules: Json | None = None
    upgrade: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """The method and path of a handler. "{id}" in path matches any text, slashes included.

    auth: whether the API key is required: "key" always, "models" only with --protect_models, "open" never.
    vital: it reports on the server, cheaply, and is served when there are too many connections, too.
    changes: it changes the state of the server for all clients, so that without a key no foreign page may use it.
    header: the route is taken instead of the one without it by requests that have this header.
    """

    method: str
    path: str
    handle: Handler
    auth: str = "key"
    doc: RouteDoc | None = None
    vital: bool = False
    changes: bool = False
    header: str = ""


def for_each_prefix(
    method: str,
    path: str,
    handle: Handler,
    auth: str = "key",
    *,
    doc: RouteDoc | None = None,
    changes: bool = False,
    header: str = "",
    bare: bool = False,
) -> list[Route]:
    """One handler under every prefix. bare: without one as well, as in vLLM or in llama.cpp's server."""
    bases = (*BASES, *[""] * bare)
    return [Route(method, base + path, handle, auth, doc, changes=changes, header=header) for base in bases]


def collect() -> list[Route]:
    """Every route of every module with ROUTES, by package and module name."""
    return [route for module in endpoints() for route in module.ROUTES]


@cache
def endpoints() -> tuple[ModuleType, ...]:
    """Every module below this package that has ROUTES, by its name."""
    from . import __name__ as package
    from . import __path__ as places  # the modules import this file

    names = sorted(found.name for found in pkgutil.walk_packages(places, f"{package}."))
    return tuple(module for name in names if hasattr(module := importlib.import_module(name), "ROUTES"))


MAX_PARTS = 4
"""The last parts of an unknown path that are compared with known paths; a client may send thousands."""
MAX_LENGTH, NEAR = 60, 0.9
"""Of a misspelt end of a path, and how near a known one must be (difflib): of twenty characters two may be wrong."""


class Entry(Protocol):
    """What the table reads of a route."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def header(self) -> str: ...


E = TypeVar("E", bound=Entry)


class Table(Generic[E]):
    """Look up a route by method and path. Of several matching patterns, the one with most literal text wins.

    A trailing slash is ignored in a path without an "{id}": some clients send one, and FastAPI (vLLM) redirects.
    """

    def __init__(self, routes: list[E]) -> None:
        self._exact: dict[str, dict[str, E]] = {}
        self._patterns: dict[str, dict[str, E]] = {}
        self._variants = {(route.method, route.path): route for route in routes if route.header}
        for route in routes:
            if route.header:
                continue
            methods = (self._patterns if "{id}" in route.path else self._exact).setdefault(route.path, {})
            if route.method in methods:
                raise AssertionError(f"two handlers for {route.method} {route.path}")
            methods[route.method] = route
        longest = sorted(self._patterns, key=lambda pattern: len(pattern.replace("{id}", "")), reverse=True)
        self._ordered = [(_compile(pattern), self._patterns[pattern]) for pattern in longest]

    def methods(self, path: str) -> dict[str, E]:
        """The routes of a path by method; empty if there are none."""
        found = self._exact.get(path) or self._exact.get(path.removesuffix("/"))
        if found is None:
            found = next((methods for pattern, methods in self._ordered if pattern.fullmatch(path)), {})
        return found

    def variant(self, route: E, request: Request) -> E:
        """The route that takes this request instead of `route` because of a header; `route` if there is none."""
        other = self._variants.get((route.method, route.path))
        return route if other is None or other.header not in request.headers else other

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


def ids_in(path: str, pattern: str) -> tuple[str, ...]:
    """The text in a path for each "{id}" of a pattern, under any prefix."""
    bases = sorted(BASES, key=len, reverse=True)
    return next(found.groups() for base in bases if (found := _compile(base + pattern).fullmatch(path)))


def id_in(path: str, pattern: str) -> str:
    """As ids_in, for a pattern with one "{id}"."""
    [found] = ids_in(path, pattern)
    return found


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile("(.+)".join(map(re.escape, pattern.split("{id}"))), re.DOTALL)
