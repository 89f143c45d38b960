"""A model that is loaded and unloaded, the requests that wait for it, and the group that is in memory together.

Knows no event loop's tasks but those that are given, and no requests but those that wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ..config import Config
from ..errors import RequestError, StartError, TooManyRequests, Unavailable
from ..observability.records import current_record
from ..util.concurrency import InFlight
from ..util.plurals import counted

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1, 60


class CachedModel(Protocol):
    """A model, as far as it is loaded and unloaded."""

    name: str
    config: Config
    in_flight: InFlight
    loaded: bool

    @property
    def memory_bytes(self) -> int:
        """The memory that the model will take, roughly."""

    async def load(self) -> None:
        """Raises StartError."""

    async def unload(self) -> None: ...


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for its model. granted: False if the model has been replaced."""

    granted: asyncio.Future[bool]
    since: float
    client: str


@dataclass(slots=True, eq=False)
class Member:
    """One model. task: the load or unload in progress; a load that fails returns the reason. failure: of the last load.
    retry_at: loop time before which a failed load is not tried again. retired_since: it takes no requests that arrived
    later, and is still in memory (time.monotonic())."""

    model: CachedModel
    group: ModelGroup
    waiters: list[Waiter] = field(default_factory=list)
    task: asyncio.Task[StartError | None] | None = None
    unloading: bool = False
    failure: StartError | None = None
    retry_at: float = 0.0
    retired_since: float | None = None

    @property
    def retired(self) -> bool:
        return self.retired_since is not None

    def retire(self) -> None:
        """From now on it takes no new requests, and those that wait are sent on."""
        self.retired_since = time.monotonic()
        self.answer(False)

    @property
    def state(self) -> str:
        """Returns "unloaded", "loading", "loaded" or "unloading"."""
        if self.task is not None:
            return "unloading" if self.unloading else "loading"
        return "loaded" if self.model.loaded else "unloaded"

    @property
    def open(self) -> bool:
        """Whether the model is loaded and not about to be unloaded."""
        return self.model.loaded and self.task is None

    def admits(self, arrived: float) -> bool:
        """Whether a request that arrived then may use the model now.

        One that arrived before the model was replaced goes on with it. It may use it already, and if it waited for the
        successor, which is not loaded before this model has gone, it would wait for itself.
        """
        since = self.group.closing_since if self.retired_since is None else self.retired_since
        return self.open and (since is None or arrived <= since)

    @property
    def loadable(self) -> bool:
        return self.state == "unloaded" and not self.retired

    def check_queue(self, client: str) -> None:
        """Raises TooManyRequests if this client's request may not wait, too."""
        config, waiting = self.model.config, len(self.waiters)
        own = sum(waiter.client == client for waiter in self.waiters) if client else 0
        if waiting >= config.max_queued_requests or own >= config.max_queued_requests_per_client:
            why = f"{counted(waiting, 'request is', 'requests are')} waiting for this model to be loaded already"
            raise TooManyRequests(why, retry_after_s=bounded(self.group.load_s))

    def answer(self, result: bool | Callable[[], RequestError]) -> None:
        """End the waiting of all requests. True: each may use the model, which is counted."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.granted.done():  # its task has been cancelled, and has not run since
                continue
            if not isinstance(result, bool):
                waiter.granted.set_exception(result())
                continue
            if result:
                self.model.in_flight.add()
            waiter.granted.set_result(result)


@dataclass(slots=True, eq=False)
class ModelGroup:
    """Models that are in memory together. permanent: they stay. closing_since: requests that arrived later wait until
    it is loaded again (time.monotonic()). leaving: an operator unloads it. keep_s: as in ModelCache.keep. last_used,
    loaded_at: loop times. load_s: how long the last load took."""

    name: str
    members: list[Member] = field(default_factory=list)
    permanent: bool = False
    idle_timeout_s: float = 0.0
    keep_s: float | None = None
    leaving: bool = False
    closing_since: float | None = None
    last_used: float = 0.0
    loaded_at: float = 0.0
    load_s: float = 0.0

    def close(self) -> None:
        """Has requests that arrive from now on wait until it is loaded again."""
        if self.closing_since is None:
            self.closing_since = time.monotonic()

    @property
    def occupied(self) -> bool:
        """Whether the group is in memory, or on its way in or out."""
        return any(one.model.loaded or one.task is not None for one in self.members)

    @property
    def changing(self) -> bool:
        return any(one.task is not None for one in self.members)

    @property
    def unloading(self) -> bool:
        return any(one.unloading for one in self.members)

    @property
    def busy(self) -> bool:
        return any(one.model.in_flight for one in self.members)

    @property
    def idle_after_s(self) -> float | None:
        """The idle time after which it is unloaded; None: it stays."""
        if self.keep_s is not None:
            return None if self.keep_s < 0 else self.keep_s
        return self.idle_timeout_s or None

    def seconds_left(self) -> float | None:
        """Returns the time until it is unloaded if no request comes; None: it stays."""
        if self.permanent or (idle_after_s := self.idle_after_s) is None:
            return None
        return idle_after_s if self.busy else max(0.0, self.last_used + idle_after_s - now())

    @property
    def idle(self) -> bool:
        """Whether the group is in memory and may be unloaded now."""
        return self.occupied and not (self.permanent or self.busy or self.changing)

    @property
    def wanted(self) -> bool:
        """Whether requests wait for the group and it is not in memory."""
        return self.wanted_since is not None and not (self.occupied or self.leaving)

    @property
    def wanted_since(self) -> float | None:
        """When the first of its waiting requests arrived."""
        return min((waiter.since for one in self.members for waiter in one.waiters), default=None)


async def settled(members: Iterable[Member]) -> None:
    """Returns when all loads and unloads in progress have ended, however they did."""
    if running := [one.task for one in members if one.task is not None]:
        await asyncio.wait(running)


def sleeping() -> Unavailable:
    """Returns the error for requests while the server sleeps."""
    return Unavailable("The server sleeps; POST /wake_up ends that.", code="sleeping", retry_after_s=MAX_RETRY_AFTER_S)


def all_busy() -> Unavailable:
    """Returns the error for a request that has waited too long for its model."""
    why = "The models in memory are at work, and none could be unloaded."
    return Unavailable(why, code="models_busy", retry_after_s=MAX_RETRY_AFTER_S)


def stopping() -> Unavailable:
    """Returns the error for requests while the server stops."""
    return Unavailable("The server is shutting down.", code="shutting_down")


def not_loaded(failure: StartError, retry_after_s: float | None = None) -> Unavailable:
    """Returns the error for a request whose model could not be loaded. retry_after_s: when it may be sent again."""
    after_s = None if retry_after_s is None else bounded(retry_after_s)
    return Unavailable(
        f"The model could not be loaded. {failure.reason}", code="model_not_loaded", retry_after_s=after_s
    )


def bounded(seconds: float) -> int:
    """Returns the seconds as a value for Retry-After."""
    return max(MIN_RETRY_AFTER_S, min(MAX_RETRY_AFTER_S, math.ceil(seconds)))


def now() -> float:
    return asyncio.get_running_loop().time()


def arrival() -> float:
    """Returns when the request of this task arrived (time.monotonic())."""
    record = current_record.get()
    return record.started if record is not None else time.monotonic()
