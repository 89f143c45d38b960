"""Requests that change the state of a server, of which a Ray deployment has several: each replica makes the change.

A change is made by the replica that it has come to, and if that takes it, by all others. A client gets an answer that
holds for all replicas, or is told that it holds for one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...api.app import App
from ...api.response import warning_headers
from ...errors import Unavailable
from ...types import Request, Response

log = logging.getLogger("lean_ovms.ray")

CHANGE_TIMEOUT_S = 600.0
"""Seconds within which all replicas have to make a change, such as loading a model."""
ONE_ALONE = "one replica has done this, and no other one"
COUNT = "X-Replicas"
"""A header of answers: how many replicas have made a change."""
MOST_TEXT = 300
"""Characters of another replica's error that are shown."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes state, as replicas pass it on."""

    origin: str
    """The id of the replica that it has come to, and that has made the change."""
    method: str
    """The HTTP method."""
    path: str
    """The path as it came."""
    query: str
    """The query as it came."""
    headers: Mapping[str, str]
    """The client's headers, with its API key."""
    body: bytes
    """The whole body."""


@dataclass(frozen=True, slots=True)
class Result:
    """What another replica has answered."""

    replica: str
    """The id of the replica."""
    status: int
    """The HTTP status."""
    text: str
    """The beginning of the body."""


class Replicas:
    """The replicas of the deployment that this process has one of; outside Ray it is the only one."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._handle: Any = None
        self._id, self._deployment = "", ("", "")
        if (context := replica_context()) is not None:
            self._id, self._deployment = context.replica_id.unique_id, (context.deployment, context.app_name)

    async def handle(self, request: Request) -> Response:
        """Answers a request as the app does; what changes the state is done by the other replicas, too."""
        route = self._app.route(request)
        if not self._id or route is None or not route.changes:
            return await self._app.handle(request)
        if route.by_one:
            response = await self._app.handle(request)
            response.headers += warning_headers([ONE_ALONE])
            return response
        headers = dict(request.headers)
        change = Change(self._id, request.method, request.path, request.query, headers, request.body)
        response = await self._app.handle(request)
        if response.status >= 400:
            return response
        results = await self._everywhere(change)
        refused = [f"{one.replica}: {one.text}" for one in results if one.status >= 400]
        if not refused:
            response.headers.append((COUNT, str(len(results) + 1)))
            return response
        await response.aclose()
        text = f"{len(refused)} of {len(results) + 1} replicas have not done this, the others have: {refused[0]}"
        error = Unavailable(text, code="replicas_differ")
        return self._app.config.composition.error_forms.response(error, request=request, request_id="")

    async def _everywhere(self, change: Change) -> list[Result]:
        """Returns the results of the other replicas, which make a change now."""
        from ray import serve

        if self._handle is None:
            self._handle = serve.get_deployment_handle(*self._deployment)
        called = self._handle.broadcast("change", change)
        found = await called.results_async(timeout_s=CHANGE_TIMEOUT_S, return_exceptions=True)
        for one in found:
            if isinstance(one, Exception):
                log.warning("a replica has not made the change %s: %r", change.path, one)
        results = [Result("?", 503, type(one).__name__) if isinstance(one, Exception) else one for one in found]
        return [one for one in results if one is not None]

    async def change(self, change: Change) -> Result | None:
        """Makes a change that has come to another replica. Returns None where it has come to this one."""
        if change.origin == self._id:
            return None
        request = Request(change.method, change.path, change.query, change.headers, change.body)
        response = await self._app.handle(request)
        try:
            text = response.body[:MOST_TEXT].decode("utf-8", "replace") if isinstance(response.body, bytes) else ""
            return Result(self._id, response.status, text)
        finally:
            await response.aclose()


def replica_context() -> Any:
    """Returns Ray's context of the replica that this process is; None: it is none."""
    try:
        from ray import serve

        return serve.get_replica_context()
    except Exception:  # not installed, or RayServeException outside a replica
        return None
