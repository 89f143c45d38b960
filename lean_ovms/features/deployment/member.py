"""Models of a cache with their waiting requests, and groups of models that are in memory together.

The phases of a model and their rules are in models/lifecycle.py. model_cache.py decides when a group is loaded and
unloaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ...errors import (
    MOST_RETRY_AFTER_S,
    RequestError,
    StartError,
    TooManyRequests,
    Unavailable,
    counted,
    not_loaded,
    retry_after,
)
from ...models.lifecycle import LOADED, UNLOADED, UNLOADING, Residency, arrival
from ...observability.records import current_client


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for its model."""

    granted: asyncio.Future[bool]
    """The outcome: True if the request may use the model, False if the model is retired, or an error."""
    since: float
    """The time of its arrival by time.monotonic()."""
    client: str
    """The name of its client; "" if it is not known."""


class MemberCache(Protocol):
    """The methods of the ModelCache that a member uses."""

    @property
    def asleep(self) -> bool:
        """Whether requests are refused until `wake_up`."""

    def check_awake(self) -> None:
        """Raises Unavailable while the server sleeps or stops."""

    def pump(self) -> None:
        """Loads and unloads groups as waiting requests and limits demand."""

    async def unload(self, group: ModelGroup) -> None:
        """Unloads a group once its running requests have finished. Raises RequestError while the server sleeps."""

    def remove(self, member: Member, group: ModelGroup) -> None:
        """Removes a member that has left its group."""


class Member:
    """A model in a ModelCache, with the requests that wait for it."""

    def __init__(self, model: Residency, cache: MemberCache, group: ModelGroup) -> None:
        """Begins without requests.

        Args:
            model: The model.
            cache: The cache, which loads and unloads the model.
            group: The models that are in memory together with it.
        """
        self.model = model
        self.waiters: list[Waiter] = []
        self.change: asyncio.Task[StartError | None] | None = None
        """The load or unload in progress; a load that fails returns the reason."""
        self.retry_at = 0.0
        """The loop time before which a failed load is not repeated."""
        self.group: ModelGroup | None = group
        """The group in whose `members` it is; None if it has left it."""
        self._cache = cache

    @property
    def loadable(self) -> bool:
        """Whether it may be loaded now."""
        return self.model.phase == UNLOADED and not self.model.retired

    @property
    def asleep(self) -> bool:
        return self._cache.asleep

    @property
    def closed_since(self) -> float | None:
        return self.group.closed_since if self.group is not None else None

    @property
    def waiting(self) -> int:
        return len(self.waiters)

    @property
    def seconds_left(self) -> float | None:
        return self.group.seconds_left() if self.group is not None else None

    # --- requests

    async def hold(self) -> bool:
        """Waits until the model is in memory. Returns whether the request may use it; False if it was retired."""
        model = self.model
        if self.group is None:
            return False
        if model.takes(arrival()):
            model.in_flight.add()
            return True
        if model.retired:
            return False
        self._cache.check_awake()
        if model.failure is not None and (left_s := self.retry_at - now()) > 0:
            raise not_loaded(model.failure, left_s)
        self._check_queue(current_client(), self.group.load_s)
        return await self._wait()

    def _check_queue(self, client: str, load_s: float) -> None:
        """Raises TooManyRequests if too many of this client's requests wait; "" is an unknown client.

        The load took `load_s` the last time.
        """
        config, waiting = self.model.config, len(self.waiters)
        own = sum(waiter.client == client for waiter in self.waiters) if client else 0
        if waiting >= config.max_queued_requests or own >= config.max_queued_requests_per_client:
            why = f"{counted(waiting, 'request is', 'requests are')} already waiting for this model to be loaded"
            raise TooManyRequests(why, retry_after_s=retry_after(load_s))

    async def _wait(self) -> bool:
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), arrival(), current_client())
        self.waiters.append(waiter)
        late = loop.call_later(self.model.config.engine_load_timeout_s, self._give_up, waiter)
        try:
            self._cache.pump()
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
                self._cache.pump()  # another group may have been waiting only because of this request
            elif not waiter.granted.cancelled() and waiter.granted.exception() is None and waiter.granted.result():
                self.model.in_flight.remove()
            raise
        finally:
            late.cancel()

    def _give_up(self, waiter: Waiter) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)
            if not waiter.granted.done():  # otherwise the task was cancelled and has not run since
                waiter.granted.set_exception(all_busy())
            self._cache.pump()

    def answer(self, result: bool | Callable[[], RequestError]) -> None:
        """Ends the wait of all requests.

        With True, each of them may use the model and counts as running. With False, the model is retired. A function
        returns the error that one of them gets.
        """
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.granted.done():  # the task was cancelled and has not run since
                continue
            if not isinstance(result, bool):
                waiter.granted.set_exception(result())
                continue
            if result:
                self.model.in_flight.add()
            waiter.granted.set_result(result)

    def send_on(self) -> None:
        self.answer(False)

    # --- operators

    def keep(self, seconds: float | None) -> bool:
        if self.group is None or self.group.permanent:
            return False
        self.group.keep_s = seconds
        return True

    async def unload(self) -> None:
        if self.group is not None:
            await self._cache.unload(self.group)

    def leave(self) -> None:
        if self.group is None:
            return
        if self.change is not None and not self.change.done():
            self.change.add_done_callback(lambda _: self.leave())  # the load that is running will now end with an error
            return
        group, self.group = self.group, None
        self.model.phase, self.model.in_flight.on_none = UNLOADED, None
        self._cache.remove(self, group)


@dataclass(slots=True, eq=False)
class ModelGroup:
    """A group of models that are in memory together."""

    name: str
    """The name of the group, which only the ModelCache uses."""
    members: list[Member] = field(default_factory=list)
    """The models, including retired ones until they have left memory."""
    permanent: bool = False
    """Whether the models are never unloaded for others, or when they are idle."""
    idle_timeout_s: float = 0.0
    """The configured idle time in seconds after which the group is unloaded; 0 if being idle never unloads it."""
    keep_s: float | None = None
    """The idle time in seconds that a request has set, negative for no unloading; None for the configured time."""
    leaving: bool = False
    """Whether the group is being unloaded by an operator's request."""
    closed_since: float | None = None
    """The time since which it is closed to new requests, by time.monotonic(); None if it is open."""
    last_used: float = 0.0
    """The event loop's time of the end of its last request."""
    loaded_at: float = 0.0
    """The event loop's time of its last load."""
    load_s: float = 0.0
    """The seconds that its last load took."""

    def close(self) -> None:
        """Closes the group: new requests wait until it is loaded again."""
        if self.closed_since is None:
            self.closed_since = time.monotonic()

    @property
    def models(self) -> list[Residency]:
        """The models themselves."""
        return [one.model for one in self.members]

    @property
    def loaded(self) -> list[Member]:
        """The members that are in memory."""
        return [one for one in self.members if one.model.phase == LOADED]

    @property
    def occupied(self) -> bool:
        """Whether a member is in memory, or is being loaded or unloaded."""
        return any(one.phase != UNLOADED for one in self.models)

    @property
    def changing(self) -> bool:
        """Whether a member is being loaded or unloaded."""
        return any(one.changing for one in self.models)

    @property
    def unloading(self) -> bool:
        """Whether a member is being unloaded."""
        return any(one.phase == UNLOADING for one in self.models)

    @property
    def busy(self) -> bool:
        """Whether requests are using a member."""
        return any(one.in_flight for one in self.models)

    @property
    def idle_after_s(self) -> float | None:
        """The idle time in seconds after which the group is unloaded; None if it is never unloaded."""
        if self.keep_s is not None:
            return None if self.keep_s < 0 else self.keep_s
        return self.idle_timeout_s or None

    def seconds_left(self) -> float | None:
        """Returns the seconds until the group is unloaded if no request arrives, or None if it is not."""
        if self.permanent or (idle_after_s := self.idle_after_s) is None:
            return None
        return idle_after_s if self.busy else max(0.0, self.last_used + idle_after_s - now())

    @property
    def idle(self) -> bool:
        """Whether the group is in memory and could be unloaded now."""
        return self.occupied and not (self.permanent or self.busy or self.changing)

    @property
    def wanted(self) -> bool:
        """Whether requests wait for the group because it is not in memory."""
        return self.wanted_since is not None and not (self.occupied or self.leaving)

    @property
    def wanted_since(self) -> float | None:
        """The time at which the first of its waiting requests arrived, or None."""
        return min((waiter.since for one in self.members for waiter in one.waiters), default=None)


async def settled(members: Iterable[Member]) -> None:
    """Waits until all loads and unloads in progress have ended, with or without success."""
    if running := [one.change for one in members if one.change is not None]:
        await asyncio.wait(running)


def all_busy() -> Unavailable:
    """Returns the error for a request that has waited too long for its model."""
    why = "All models in memory are busy, so this one could not be loaded in time."
    return Unavailable(why, code="models_busy", retry_after_s=MOST_RETRY_AFTER_S)


def stopping() -> Unavailable:
    """Returns the error for requests while the server stops."""
    return Unavailable("The server is shutting down.", code="shutting_down")


def now() -> float:
    """Returns the time of the event loop."""
    return asyncio.get_running_loop().time()
