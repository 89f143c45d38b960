"""Services, the objects that endpoints work with: options, models, and what features keep while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..config import Config
from ..errors import BadRequest, ModelNotFound, RequestError, Unavailable
from ..models.model import Deployment, Model, ModelRegistry, NotLoaded
from ..observability.records import Metrics, current_client, log_quietly
from ..types import Json, Request, Response
from ..types.engine import EngineStats
from ..util import chunked_json
from ..util.concurrency import Budget, Lease, Offload
from .fields import Values, json_body
from .keys import ApiKeys
from .middleware import RequestRecords
from .response import model_name

INLINE_BYTES = 32768
"""The size in bytes below which a body is parsed on the event loop: a thousand messages, in at most 3 ms (2026-11)."""

LARGE_BODY = 65536
"""The size in bytes from which a body counts toward --max_body_memory_mb."""
BODY_FACTOR = 2
"""The memory of a request as a multiple of its body: the body and its values, or the values and the prompt."""

T = TypeVar("T")
S = TypeVar("S", bound="Service")
M = TypeVar("M", bound=Model)


Handler = Callable[[Request, "Services"], Awaitable[Response]]


class Service:
    """An object that a feature keeps as long as the server runs. It is created at its first use."""

    def __init__(self, config: Config) -> None: ...

    async def drain(self, timeout_s: float) -> None:
        """Waits at most timeout_s seconds for running work for which no request waits. By default there is none."""

    async def close(self) -> None:
        """Stops running work and closes files, if there are any. Idempotent."""


STATS_TIMEOUT_S = 1.0


async def read_stats(stats: Awaitable[EngineStats], timeout_s: float = STATS_TIMEOUT_S) -> EngineStats | None:
    """Awaits the statistics of an engine, which it sends between two steps; returns None after timeout_s seconds."""
    try:
        return await asyncio.wait_for(stats, timeout_s)
    except (RequestError, asyncio.TimeoutError):
        return None


@dataclass(slots=True)
class Services:
    """The options, the models and the state that handlers use."""

    config: Config
    """The options of the server."""
    registry: ModelRegistry
    """The models that are served."""
    metrics: Metrics
    """The metrics."""
    offload: Offload
    """Runs long work outside the event loop."""
    bodies: Budget
    """The memory for large request bodies."""
    records: RequestRecords
    """The records of requests."""
    keys: ApiKeys
    """The API keys."""
    handle: Callable[[Request], Awaitable[Response]]
    """Answers a request as if a client had sent it."""
    forward: Callable[[Request, str], Awaitable[Response]]
    """Has another endpoint answer a POST whose API key has been checked already."""
    manager: Deployment | None = None
    """Loads and replaces models while the server runs; None if the models stay the same."""
    draining: bool = False
    """Whether the server is shutting down and takes no more requests."""
    stopping: bool = False
    """Whether no further service may be created."""
    states: dict[type[Any], Any] = field(default_factory=dict)
    """The services created so far, by class."""

    def get(self, kind: type[S]) -> S:
        """Returns the service of this class, created at its first use. Raises Unavailable if the server stops."""
        if kind not in self.states:
            if self.stopping:
                raise Unavailable("the server is shutting down", code="shutting_down")
            self.states[kind] = kind(self.config)
        found: S = self.states[kind]
        return found

    def named_model(self, values: Values, kind: type[M]) -> M:
        """Returns the model that the request names, or else the only model of this kind. Raises RequestError."""
        return self.registry.get(values["model"] or self.registry.default_of(kind) or model_name(values), kind)

    def helper(self, option: str, model: Model, kind: type[M]) -> M:
        """Returns the model that an option of another model names as its helper. Raises RequestError.

        Args:
            option: The name of the option.
            model: The model that has the option.
            kind: The required class of the helper.
        """
        try:
            return self.registry.get(model.config.value(option), kind, helper=True)
        except (ModelNotFound, BadRequest) as error:
            raise ModelNotFound(f"--{option}: {error.message}", code=error.code) from None

    def require_ready(self) -> None:
        """Raises Unavailable if the server is not ready for requests.

        It is not ready while it stops or sleeps, while a model loads at the start, or if no model is ready. One model
        that failed to load does not make the server unready; a model that is loaded by its first request counts as
        ready.
        """
        if self.draining:
            raise Unavailable("Server is shutting down", code="draining")
        waiting = {m.name: m.state for m in self.registry.models.values() if not m.ready}
        unready = len(waiting) == len(self.registry.models) or any(state != "failed" for state in waiting.values())
        if waiting and unready:
            if "loading" in waiting.values():
                log_quietly()  # a probe asks every second or so until they are loaded
            raise Unavailable(
                "Server is not ready: " + ", ".join(f"{name} is {state}" for name, state in waiting.items())
            )

    async def parse_body(self, request: Request, parse: Callable[[Json, Services], T]) -> T:
        """Returns the result of `parse` for the JSON body of a request. A large body is parsed in the offload thread.

        If the properties of the request's model are not known yet, the model is loaded first, since they decide what a
        request may ask for. Raises RequestError.
        """
        if request.size >= INLINE_BYTES:
            return await self._parse_large_body(request, parse)
        body = json_body(request)
        request.body = b""
        return await self.when_known(lambda: parse(body, self))

    async def _parse_large_body(self, request: Request, parse: Callable[[Json, Services], T]) -> T:
        """Parses a large body in the offload thread. Raises RequestError."""
        parsed: list[Json] = []  # when its model is not known yet

        def work() -> T:
            body = parsed.pop() if parsed else json_body(request, self.config.max_body_values)
            request.body = b""
            try:
                return parse(body, self)
            except NotLoaded:
                parsed.append(body)
                raise
            except RequestError:
                chunked_json.free(body)  # here, rather than with the error's traceback on the event loop
                raise

        return await self.offload_when_known(request.size, work)

    async def count_body(self, size: int) -> Lease:
        """Reserves memory for a body of these bytes, unless it is small; returns the lease. Raises Unavailable."""
        if size < LARGE_BODY:
            return Lease(self.bodies, 0)
        return await self.bodies.acquire(BODY_FACTOR * size, current_client())

    async def when_known(self, find: Callable[[], T]) -> T:
        """Returns the result of `find`, called again once a model that it needs is loaded. Raises RequestError."""
        while True:
            try:
                return find()
            except NotLoaded as error:
                model = error.model
            await model.wait_known()

    async def offload_when_known(self, size: int, find: Callable[[], T], *, inline_below: int = 0) -> T:
        """Returns the result of `find`, called in the thread if `size` is large, once the models it needs are loaded.

        Args:
            size: The size in bytes of what `find` works on.
            find: The function; it is called again after a missing model has been loaded.
            inline_below: The size in bytes below which `find` is called on the event loop.

        Raises:
            RequestError: The function raised it, or a model cannot be loaded.
        """
        while True:
            try:
                return await self.offload.run(size, find, inline_below=inline_below)
            except NotLoaded as error:
                model = error.model
            await model.wait_known()
