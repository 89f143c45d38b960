"""Requests that change the state of a server. Each replica of a Ray deployment makes the change.

The replica that receives a request makes the change, and if it succeeds, so do all others. The client gets a response
that holds for all replicas, or an error that says that it holds for one only. A replica that starts later asks the
others for the lasting changes, and makes them before it takes requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from ...api.app import App
from ...api.response import warning_headers
from ...errors import Unavailable
from ...manifest import Route
from ...types import Request, Response
from .prompts import MARKS, ProxiedRequest

log = logging.getLogger("lean_ovms.ray")

CHANGE_TIMEOUT_S = 600.0
"""Seconds within which all replicas must make a change, such as loading a model."""
ASK_TIMEOUT_S = 10.0
"""Seconds within which the others must report their changes."""
ASK_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between a new replica's requests for changes. Until all know of it, they make changes without it."""
MOST_LASTING = 4096
"""The number of objects whose last change is remembered; those changed longest ago are forgotten."""
MOST_READ = 1 << 20
"""The largest body, in bytes, whose prompt a replica reads to report it; a longer one would delay others."""
MOST_KNOWN = 4096
"""The number of prompt prefixes that a replica reports: two million characters, which take 32 KB."""
ONE_ALONE = "only one replica has done this"
COUNT = "X-Replicas"
"""The response header with the number of replicas that have made a change."""
MOST_TEXT = 300
"""The most characters of another replica's error that are shown."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes state, in the form in which replicas pass it on."""

    origin: str
    """The id of the replica that received the request, and has made the change."""
    method: str
    """The HTTP method."""
    path: str
    """The path as received."""
    query: str
    """The query as received."""
    headers: Mapping[str, str]
    """The client's headers, including its API key."""
    body: bytes
    """The whole body."""
    at_s: float
    """The Unix time at which that replica received it."""

    def request(self) -> Request:
        """Returns the change as a request."""
        return Request(self.method, self.path, self.query, self.headers, self.body)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a change in another replica."""

    replica: str
    """The id of the replica."""
    status: int
    """The HTTP status."""
    text: str
    """The beginning of the body."""


class Replicas:
    """The replicas of the deployment to which this process belongs; outside of Ray it is the only one."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._handle: Any = None
        self._id, self._deployment = "", ("", "")
        self._lasting: OrderedDict[tuple[str, str], Change] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()  # as in PrefixRouter, the last used is at the end
        if (context := replica_context()) is not None:
            self._id, self._deployment = context.replica_id.unique_id, (context.deployment, context.app_name)

    async def handle(self, request: Request) -> Response:
        """Returns the response to a client's request; if it changes state, with the results of the other replicas."""
        route = self._app.route(request)
        if route is None or not route.changes:
            return await self._answer(request)
        headers = dict(request.headers)
        change = Change(self._id, request.method, request.path, request.query, headers, request.body, time.time())
        response = await self._app.handle(request)
        if response.status >= 400 or not self._id:
            return response
        if route.by_one or not self._can_tell_others():
            response.headers += warning_headers([ONE_ALONE])
            return response
        self._remember(route, change)
        try:
            results = await self._everywhere(change)
        except BaseException:  # the client has left
            await response.aclose()
            raise
        refused = [f"{one.replica}: {one.text}" for one in results if one.status >= 400]
        if not refused:
            response.headers.append((COUNT, str(len(results) + 1)))
            return response
        await response.aclose()
        text = f"{len(refused)} of {len(results) + 1} replicas have not done this: {refused[0]}"
        error = Unavailable(text, code="replicas_differ")
        return self._app.config.composition.error_forms.response(error, request=request, request_id="")

    async def _answer(self, request: Request) -> Response:
        """Returns the response to a request that changes nothing, and records the prefix of its prompt."""
        json = request.headers.get("content-type", "").startswith("application/json")
        marks: list[bytes] = []
        if self._id and request.method == "POST" and json and len(request.body) <= MOST_READ:
            marks = ProxiedRequest(request.path, request.headers, request.body).marks()
        response = await self._app.handle(request)
        if response.status < 400:
            for mark in reversed(marks):
                self._known[mark] = None
                self._known.move_to_end(mark)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return response

    def known(self) -> dict[str, bytes]:
        """Returns the prefixes of the prompts that this replica has answered, for the routers of all proxies."""
        return {MARKS: b"".join(self._known)}

    # --- changes

    def _can_tell_others(self) -> bool:
        """Returns whether changes can be passed on; a user's class around LeanOvms may lack the method for it."""
        return hasattr(getattr(replica_context(), "servable_object", None), "change")

    def _remember(self, route: Route, change: Change) -> None:
        """Remembers a change made here, if it is a lasting one."""
        if route.lasting:
            thing = _thing(route, change)
            self._lasting[thing] = change
            self._lasting.move_to_end(thing)
            while len(self._lasting) > MOST_LASTING:
                self._lasting.popitem(last=False)

    async def _everywhere(self, change: Change) -> list[Result]:
        """Makes a change in all other replicas, and returns their results."""
        try:
            found = await self._broadcast("change", change, timeout_s=CHANGE_TIMEOUT_S)
        except Exception as error:  # no replica was reached: there was no time, or Ray cannot reach any
            found = [error]
        for one in found:
            if isinstance(one, Exception):
                log.warning("a replica did not make the change %s: %r", change.path, one)
        results = [Result("?", 503, type(one).__name__) if isinstance(one, Exception) else one for one in found]
        return [one for one in results if one is not None]

    async def _broadcast(self, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
        """Calls a method of the deployment's class in all running replicas; returns their results or errors."""
        from ray import serve

        if self._handle is None:
            self._handle = serve.get_deployment_handle(*self._deployment)
        called = self._handle.broadcast(method, *arguments)
        found: list[Any] = await called.results_async(timeout_s=timeout_s, return_exceptions=True)
        return found

    async def change(self, change: Change) -> Result | None:
        """Makes a change that another replica has received. Returns None if this one received it."""
        if change.origin == self._id:
            return None
        request = change.request()
        if (route := self._app.route(request)) is not None:
            self._remember(route, change)
        response = await self._app.handle(request)
        try:
            text = response.body[:MOST_TEXT].decode("utf-8", "replace") if isinstance(response.body, bytes) else ""
            return Result(self._id, response.status, text)
        finally:
            await response.aclose()

    def changes(self) -> list[Change]:
        """Returns the lasting changes that were made here."""
        return list(self._lasting.values())

    async def catch_up(self) -> None:
        """Makes the lasting changes that other replicas made without this one."""
        if not self._id:
            return
        try:
            found = await self._broadcast("changes", timeout_s=ASK_TIMEOUT_S)
        except Exception as error:  # a deployment's first replica has none to ask
            log.debug("no other replica reports its changes: %r", error)
            return
        for change in _in_order(one for one in found if isinstance(one, list)):
            route = self._app.route(change.request())
            known = None if route is None else self._lasting.get(_thing(route, change))
            if route is None or (known is not None and known.at_s >= change.at_s):
                continue
            result = await self.change(change)
            if result is None:  # this replica made the change itself, and has forgotten it
                continue
            bad = result.status >= 400 and result.status != 404  # ending something that is not here does not fail
            level = logging.WARNING if bad else logging.INFO
            log.log(level, "%s, as on another replica: %d %s", change.path, result.status, result.text)

    async def settle(self) -> None:
        """Repeats `catch_up` for a while, since other replicas may not know yet that this one exists."""
        for wait_s in ASK_AGAIN_S:
            await asyncio.sleep(wait_s)
            await self.catch_up()


def _thing(route: Route, change: Change) -> tuple[str, str]:
    """Returns a key for the object of a change. Of several changes with the same key, the last one counts."""
    named: Any = None
    with contextlib.suppress(orjson.JSONDecodeError):
        body = orjson.loads(change.body)
        named = body.get(route.lasting) if isinstance(body, dict) else dict(parse_qsl(change.query)).get("model")
    return route.lasting, str(named)


def _in_order(lists: Iterable[list[Change]]) -> list[Change]:
    """Returns the changes of several replicas in the order of their times."""
    return sorted((change for changes in lists for change in changes), key=lambda change: change.at_s)


def replica_context() -> Any:
    """Returns Ray's context of the replica in this process; None if it is not a replica."""
    try:
        from ray import serve

        return serve.get_replica_context()
    except Exception:  # Ray is not installed, or RayServeException was raised outside a replica
        return None
