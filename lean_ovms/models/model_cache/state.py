"""What is in memory and what waits for it: models, their groups, and the choice of the group that is unloaded.

Knows no event loop's tasks but those that are given, and no requests but those that wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ...config import Config
from ...errors import RequestError, TooManyRequests, Unavailable
from ...observability.records import current_record
from ...util.concurrency import InFlight

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1, 60


class CachedModel(Protocol):
    """A model, as far as it is loaded and unloaded."""

    name: str
    config: Config
    in_flight: InFlight

    @property
    def loaded(self) -> bool: ...

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
    """One model. task: the load or unload in progress. retry_at: loop time before which a failed load is not tried
    again. retired: it takes no more requests, and is still in memory."""

    model: CachedModel
    group: ModelGroup
    waiters: list[Waiter] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    unloading: bool = False
    failure: RequestError | None = None
    retry_at: float = 0.0
    retired: bool = False

    @property
    def open(self) -> bool:
        """Whether the model is loaded and not about to be unloaded."""
        return self.model.loaded and self.task is None

    def check_queue(self, client: str) -> None:
        """Raises TooManyRequests if this client's request may not wait, too."""
        config, waiting = self.model.config, len(self.waiters)
        own = sum(waiter.client == client for waiter in self.waiters) if client else 0
        if waiting >= config.max_queued_requests or own >= config.max_queued_requests_per_client:
            error = TooManyRequests(f"{waiting} requests are waiting for this model to be loaded already")
            error.retry_after_s = bounded(self.group.load_s)
            raise error

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
    timer: asyncio.TimerHandle | None = None

    @property
    def occupied(self) -> bool:
        """Whether the group is in memory, or on its way in or out."""
        return any(one.model.loaded or one.task is not None for one in self.members)

    @property
    def changing(self) -> bool:
        return any(one.task is not None for one in self.members)

    @property
    def busy(self) -> bool:
        return any(one.model.in_flight for one in self.members)

    @property
    def idle_after_s(self) -> float | None:
        """The idle time after which it is unloaded; None: it stays."""
        if self.keep_s is not None:
            return None if self.keep_s < 0 else self.keep_s
        return self.idle_timeout_s or None

    @property
    def idle(self) -> bool:
        """Whether the group is in memory and may be unloaded now."""
        return self.occupied and not (self.permanent or self.busy or self.changing)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The loads and unloads in progress."""
        return [one.task for one in self.members if one.task is not None]

    @property
    def wanted(self) -> bool:
        """Whether requests wait for the group and it is not in memory."""
        return self.wanted_since is not None and not (self.occupied or self.leaving)

    @property
    def wanted_since(self) -> float | None:
        """When the first of its waiting requests arrived."""
        return min((waiter.since for one in self.members for waiter in one.waiters), default=None)


def has_room(
    wanted: ModelGroup, groups: Iterable[ModelGroup], limit: int, free_bytes: Callable[[], int] | None
) -> bool:
    """Returns whether a group may be loaded in addition to those in memory. limit, free_bytes: as in ModelCache."""
    others = [one for one in groups if one.occupied and not one.permanent]
    if wanted.permanent or not others:
        return True
    if limit:
        return len(others) < limit
    if free_bytes is None:
        return True
    loading = [one for other in others for one in other.members if one.task is not None and not one.unloading]
    return sum(one.model.memory_bytes for one in [*wanted.members, *loading]) <= free_bytes()


def choose_victim(groups: Iterable[ModelGroup]) -> ModelGroup | None:
    """Returns the group to unload for another: the one that was idle longest, or else the one that was loaded first.
    None while one is on its way out, or all are on their way in."""
    loaded = [one for one in groups if one.occupied and not one.permanent]
    if any(member.unloading for one in loaded for member in one.members):
        return None
    settled = [one for one in loaded if not one.changing]
    if idle := [one for one in settled if not one.busy]:
        return min(idle, key=lambda one: one.last_used)
    return min(settled, key=lambda one: (one.closing_since is None, one.loaded_at), default=None)


def sleeping() -> Unavailable:
    """Returns the error for requests while the server sleeps."""
    return Unavailable("The server sleeps; POST /wake_up ends that.", code="sleeping", retry_after_s=MAX_RETRY_AFTER_S)


def with_retry(error: RequestError, seconds: float) -> RequestError:
    """Returns the same error for another request, with the time after which it may be sent again."""
    return Unavailable(error.message, code=error.code, retry_after_s=bounded(seconds))


def bounded(seconds: float) -> int:
    """Returns the seconds as a value for Retry-After."""
    return max(MIN_RETRY_AFTER_S, min(MAX_RETRY_AFTER_S, math.ceil(seconds)))


def arrival() -> float:
    """Returns when the request of this task arrived (time.monotonic())."""
    record = current_record.get()
    return record.started if record is not None else time.monotonic()


def client() -> str:
    """Returns the client of this task's request; "" without one."""
    record = current_record.get()
    return record.client if record is not None else ""
