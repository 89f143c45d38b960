"""Gives endpoints what they work with: the options, the models, and the state that one API keeps for the life of an
App."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..config import Config
from ..errors import BadRequest, ModelNotFound, RequestError, Unavailable
from ..models.model import Model, NotLoaded
from ..models.registry import Deployment, ModelRegistry
from ..observability.records import Metrics, log_quietly
from ..types import Json, Request, Response
from ..types.engine import EngineStats
from ..util import chunked_json
from ..util.budget import Budget, Lease
from ..util.concurrency import Offload
from .fields import Values, json_body
from .keys import ApiKeys
from .middleware import RequestRecords
from .response import model_name

INLINE_BYTES = 32768
"""A body below this size is parsed on the event loop: a thousand messages, 3 ms at most (2026-11)."""

LARGE_BODY = 65536
"""Bodies from this size on count in --max_body_memory_mb."""
BODY_FACTOR = 2
"""Memory of a request in work by the size of its body: the body and what is parsed of it, or that and the prompt."""

T = TypeVar("T")
S = TypeVar("S", bound="Service")
M = TypeVar("M", bound=Model)


Handler = Callable[[Request, "Services"], Awaitable[Response]]


class Service(Protocol):
    """State that one API keeps for the life of an App. It is made by its first use."""

    def __init__(self, config: Config) -> None: ...

    async def drain(self, timeout_s: float) -> None:
        """Finishes what runs, within timeout_s."""

    async def close(self) -> None:
        """Ends what still runs, and releases files. Idempotent."""


STATS_TIMEOUT_S = 1.0


async def read_stats(stats: Awaitable[EngineStats], timeout_s: float = STATS_TIMEOUT_S) -> EngineStats | None:
    """Returns what an engine answers between two steps; None if it does not within timeout_s."""
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
    """What runs long work outside the event loop."""
    bodies: Budget
    """The memory for large bodies."""
    records: RequestRecords
    """The records of requests."""
    keys: ApiKeys
    """Who may use the server."""
    handle: Callable[[Request], Awaitable[Response]]
    """Returns the response to a request like that of a client."""
    forward: Callable[[Request, str], Awaitable[Response]]
    """Returns the response of another endpoint to a POST whose API key is checked."""
    manager: Deployment | None = None
    """Loads and replaces the models; None: they stay as they are."""
    draining: bool = False
    """Whether the server stops serving."""
    stopping: bool = False
    """Whether no further state is made."""
    states: dict[type[Any], Any] = field(default_factory=dict)
    """The state of features, by its class, as far as it was made."""

    def get(self, kind: type[S]) -> S:
        """Returns the one instance of a class, made by its first use. Raises Unavailable."""
        if kind not in self.states:
            if self.stopping:
                raise Unavailable("the server is shutting down", code="shutting_down")
            self.states[kind] = kind(self.config)
        found: S = self.states[kind]
        return found

    def named_model(self, values: Values, kind: type[M]) -> M:
        """Returns the model that is named, or else the only one of this kind. Raises RequestError."""
        return self.registry.get(values["model"] or self.registry.default_of(kind) or model_name(values), kind)

    def helper(self, option: str, model: Model, kind: type[M]) -> M:
        """Returns the model that an option of another one names, to work for its requests. Raises RequestError."""
        try:
            return self.registry.get(model.config.value(option), kind, helper=True)
        except (ModelNotFound, BadRequest) as error:
            raise ModelNotFound(f"--{option}: {error.message}", code=error.code) from None

    def require_ready(self) -> None:
        """Raises Unavailable while the server stops or sleeps, no model is ready, or a model loads at the start.

        A model that failed to load does not take the others out of service, and one that its requests load is ready.
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
        """Returns the parsed JSON body of a request; a large one is parsed in the offload thread. Raises RequestError.

        A model that is not known yet is loaded first: its properties decide what a request may ask for.
        """
        if request.size >= INLINE_BYTES:
            return await self._parse_large_body(request, parse)
        body = json_body(request)
        request.body = b""
        return await self.when_known(lambda: parse(body, self))

    async def _parse_large_body(self, request: Request, parse: Callable[[Json, Services], T]) -> T:
        """Parses a large body as parse_body does, in the offload thread. Raises RequestError."""
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
        """Returns room for a body, or a message, of so many bytes; a small one needs none. Raises Unavailable."""
        return await self.bodies.acquire(BODY_FACTOR * size) if size >= LARGE_BODY else Lease(self.bodies, 0)

    async def when_known(self, find: Callable[[], T]) -> T:
        """Returns what find returns; the models that it misses are loaded, after which it is called again.

        Raises RequestError.
        """
        while True:
            try:
                return find()
            except NotLoaded as error:
                model = error.model
            await model.wait_known()

    async def offload_when_known(self, size: int, find: Callable[[], T], *, inline_below: int = 0) -> T:
        """Returns the same as when_known, with find called as Offload.run calls it. Raises RequestError."""
        while True:
            try:
                return await self.offload.run(size, find, inline_below=inline_below)
            except NotLoaded as error:
                model = error.model
            await model.wait_known()
