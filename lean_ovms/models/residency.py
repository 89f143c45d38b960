"""Keeps whether a model is in memory, and which requests wait for it: the one state machine of loads and unloads.

The start, a request, a reload, a load by hand and a wake-up load; an idle time, another model's need of the memory, an
unload by hand and sleep unload. Whoever decides, a model moves along these arrows only:

                      load                        it has loaded
     UNLOADED ──────────────────▶ LOADING ──────────────────────────▶ LOADED
        ▲                            │                                   │
        ├────────────────────────────┘                                   │
        │    it does not load, or is told to stop                        │ unload
        │                                                                │
        └──────────────────────── UNLOADING ◀────────────────────────────┘
             its engine has ended

Rule 1. A model has one load or unload in progress at most. Who wants the other one waits until it has ended.
Rule 2. Requests use LOADED models only, and are counted while they do. A model that is used is not unloaded, but by a
        sleep that cuts requests off.
Rule 3. Any other request waits, as far as the queue has room, and has one outcome: it may use the model; it is sent on,
        as the model is retired; or it gets an error, as the load has failed, the server sleeps or stops, or no room
        could be made in time.
Rule 4. A load that failed is not repeated for a while: requests get its error until then.
Rule 5. A model that is to leave is closed to requests that arrive from then on. Those that arrived before may use it
        again: they have it in use, and would wait for themselves.
Rule 6. A model that has a successor, or is served no longer, is retired: closed for ever, and never loaded again. When
        its last request has ended its engine is stopped, which is the one other way from LOADED to UNLOADED. Where
        requests load the successor, that waits until the retired one is out of memory.
Rule 7. An engine that dies is started again by its client (engine/client/engine.py). The model stays LOADED or LOADING
        meanwhile, and the state that operators see is the engine's.

Models of one group are loaded and unloaded together. When they are is decided in model_cache.py; what a load does is in
lifecycle.py. Knows no engines and no HTTP.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ..config import Config
from ..errors import RequestError, StartError, TooManyRequests, Unavailable, counted
from ..observability.records import current_record
from ..util.concurrency import InFlight

UNLOADED, LOADING, LOADED, UNLOADING = "unloaded", "loading", "loaded", "unloading"
"""The phases of a model."""
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1, 60
"""The bounds of Retry-After, in seconds."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for its model."""

    granted: asyncio.Future[bool]
    """The outcome: True: it may use the model; False: the model is retired; or an error."""
    since: float
    """When it arrived, of time.monotonic()."""
    client: str
    """The name of its client; empty: not known."""


async def _no_room(error: StartError) -> bool:
    return False


class MemberCache(Protocol):
    """The methods that a model uses of the ModelCache that it is in."""

    @property
    def asleep(self) -> bool:
        """Whether requests are refused until the cache is woken up."""

    async def hold(self, model: Residency) -> bool:
        """Counts one use of a model once it is loaded. Returns False if it is replaced. Raises RequestError."""

    def keep(self, model: Residency, seconds: float | None) -> bool:
        """Sets how long a model stays in memory after its requests. Returns False if it is never unloaded."""

    async def unload(self, model: Residency) -> None:
        """Unloads a model and its group once their running requests have finished. Raises RequestError."""

    def remove(self, model: Residency) -> None:
        """Forgets a retired model whose engine has been stopped."""


class Residency:
    """A model, as far as it is loaded and unloaded. A subclass says how, by `_load` and `_unload`."""

    def __init__(self, config: Config) -> None:
        """Begins UNLOADED, and in no group: until it is added to a ModelCache, its owner alone loads it."""
        self.config = config
        self.name: str = config.served_name
        self.phase = UNLOADED
        self.in_flight = InFlight()
        self.waiters: list[Waiter] = []
        self.change: asyncio.Task[StartError | None] | None = None
        """The load or unload in progress, if a ModelCache has begun it; a load that fails returns the reason."""
        self.failure: StartError | None = None
        """Why the last attempt to load it, or its replacement, failed."""
        self.retry_at = 0.0
        """The loop time before which a failed load is not repeated."""
        self.retired_since: float | None = None
        """When it was retired, of time.monotonic()."""
        self.model_cache: MemberCache | None = None
        """What decides when it is loaded and unloaded; None: its owner does."""
        self.group: ModelGroup | None = None
        """The group in whose `members` it is; None: it is in no ModelCache, or has left it."""

    # --- the arrows

    async def load(self, make_room: Callable[[StartError], Awaitable[bool]] = _no_room) -> None:
        """Loads the model.

        Args:
            make_room: Is awaited with the reason of a failure, and returns whether another attempt may succeed.

        Raises:
            StartError: It cannot be loaded.
        """
        self.phase = LOADING
        try:
            try:
                await self._load()
            except StartError as error:
                if not await make_room(error):
                    raise
                await self._load()
        except BaseException as error:
            self.phase = UNLOADED
            if isinstance(error, StartError):
                self.failure = error
            raise
        self.phase, self.failure = LOADED, None

    async def unload(self) -> None:
        """Unloads the model, which a request or its owner may load again. None may be running."""
        self.phase = UNLOADING
        try:
            await self._unload()
        finally:
            self.phase = UNLOADED

    async def _load(self) -> None:
        """Loads the model, or leaves nothing of it in memory. Raises StartError."""
        raise NotImplementedError

    async def _unload(self) -> None:
        """Frees its memory."""
        raise NotImplementedError

    def retire(self) -> None:
        """Takes no new requests from now on, and sends on those that wait. Idempotent."""
        if self.retired_since is None:
            self.retired_since = time.monotonic()
            self.answer(False)

    # --- the phase

    @property
    def loaded(self) -> bool:
        """Whether it is in memory, and stays there for now."""
        return self.phase == LOADED

    @property
    def state(self) -> str:
        """The phase, or "sleeping"."""
        asleep = self.model_cache is not None and self.model_cache.asleep
        return "sleeping" if asleep and not self.changing else self.phase

    @property
    def changing(self) -> bool:
        """Whether a load or an unload is in progress."""
        return self.phase in (LOADING, UNLOADING)

    @property
    def retired(self) -> bool:
        """Whether another model, or none, serves its requests."""
        return self.retired_since is not None

    @property
    def loadable(self) -> bool:
        """Whether it may be loaded now."""
        return self.phase == UNLOADED and not self.retired

    @property
    def memory_bytes(self) -> int:
        """The memory that it will take, roughly."""
        return 0

    # --- requests

    def takes(self, arrived: float) -> bool:
        """Returns whether a request that arrived then may use the model now (Rule 5)."""
        closing_since = self.group.closing_since if self.group is not None else None
        since = closing_since if self.retired_since is None else self.retired_since
        return self.loaded and (since is None or arrived <= since)

    def check_queue(self, client: str) -> None:
        """Raises TooManyRequests if this client's request may not wait, too."""
        waiting = len(self.waiters)
        own = sum(waiter.client == client for waiter in self.waiters) if client else 0
        if waiting >= self.config.max_queued_requests or own >= self.config.max_queued_requests_per_client:
            why = f"{counted(waiting, 'request is', 'requests are')} waiting for this model to be loaded already"
            raise TooManyRequests(why, retry_after_s=bounded(self.group.load_s if self.group is not None else 0))

    def answer(self, result: bool | Callable[[], RequestError]) -> None:
        """Ends the waiting of all requests. True: each may use the model, which is counted."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.granted.done():  # its task has been cancelled, and has not run since
                continue
            if not isinstance(result, bool):
                waiter.granted.set_exception(result())
                continue
            if result:
                self.in_flight.add()
            waiter.granted.set_result(result)


@dataclass(slots=True, eq=False)
class ModelGroup:
    """Models that are in memory together."""

    name: str
    """The name, for the ModelCache alone."""
    members: list[Residency] = field(default_factory=list)
    """The models, retired ones included until they are out of memory."""
    permanent: bool = False
    """Whether the models are never unloaded for others, or when they are idle."""
    idle_timeout_s: float = 0.0
    """The configured idle time in seconds after which it is unloaded; 0: it stays."""
    keep_s: float | None = None
    """The idle time that a request has asked for; negative: it stays; None: as configured."""
    leaving: bool = False
    """Whether an operator unloads it."""
    closing_since: float | None = None
    """Since when it is closed to requests, of time.monotonic(); None: it is open."""
    last_used: float = 0.0
    """The loop time of the end of its last request."""
    loaded_at: float = 0.0
    """The loop time of its last load."""
    load_s: float = 0.0
    """How many seconds that load took."""

    def close(self) -> None:
        """Has requests that arrive from now on wait until it is loaded again."""
        if self.closing_since is None:
            self.closing_since = time.monotonic()

    @property
    def occupied(self) -> bool:
        """Whether it is in memory, or on its way in or out."""
        return any(one.phase != UNLOADED for one in self.members)

    @property
    def changing(self) -> bool:
        """Whether a member is on its way in or out."""
        return any(one.changing for one in self.members)

    @property
    def unloading(self) -> bool:
        """Whether a member is on its way out."""
        return any(one.phase == UNLOADING for one in self.members)

    @property
    def busy(self) -> bool:
        """Whether requests use it."""
        return any(one.in_flight for one in self.members)

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
        """Whether it is in memory and may be unloaded now."""
        return self.occupied and not (self.permanent or self.busy or self.changing)

    @property
    def wanted(self) -> bool:
        """Whether requests wait for it and it is not in memory."""
        return self.wanted_since is not None and not (self.occupied or self.leaving)

    @property
    def wanted_since(self) -> float | None:
        """When the first of its waiting requests arrived."""
        return min((waiter.since for one in self.members for waiter in one.waiters), default=None)


async def settled(models: Iterable[Residency]) -> None:
    """Returns when all loads and unloads in progress have ended, however they did."""
    if running := [one.change for one in models if one.change is not None]:
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
    """Returns the error for a request whose model could not be loaded.

    Args:
        failure: The reason.
        retry_after_s: The seconds after which the request may be sent again; None: it is not known.
    """
    after_s = None if retry_after_s is None else bounded(retry_after_s)
    return Unavailable(
        f"The model could not be loaded. {failure.reason}", code="model_not_loaded", retry_after_s=after_s
    )


def bounded(seconds: float) -> int:
    """Returns the seconds as a value for Retry-After."""
    return max(MIN_RETRY_AFTER_S, min(MAX_RETRY_AFTER_S, math.ceil(seconds)))


def now() -> float:
    """Returns the time of the event loop."""
    return asyncio.get_running_loop().time()


def arrival() -> float:
    """Returns when the request of this task arrived (time.monotonic())."""
    record = current_record.get()
    return record.started if record is not None else time.monotonic()
