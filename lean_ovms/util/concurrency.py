"""Helpers for concurrency: `Offload` runs long Python work in a thread outside the event loop, `InFlight` counts uses,
and a `Budget` is shared by requests.

While Offload's thread runs Python code, the event loop gets its turn within the switch interval. A single long call
into C would block the loop, so callers limit the input of such calls.

Short work is done at once on the event loop, which saves the change of threads. There each request has a time budget
for all its work, and so have all requests together in one iteration of the loop. When it is used up, short work goes to
the thread, too, where clients take turns, and so do the requests of a client.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import Unavailable
from .round_robin import RoundRobin

T = TypeVar("T")

SWITCH_INTERVAL_S = 0.001
"""The seconds for sys.setswitchinterval: how long the loop waits for the thread if both run (default 5 ms)."""

INLINE_CHARACTERS = 1 << 20
"""The most characters of a conversation for work on the event loop. Work on a longer one always goes to the thread."""

INLINE_S = 0.01
"""The CPU seconds on the event loop for a request, and for all in one iteration; a template takes 0.1 to 0.5 ms."""


class TooSlowInline(Exception):
    """Raised by work that has used up its request's time on the event loop, and must be repeated in the thread."""


class InlineTime:
    """The CPU time that one request has left on the event loop."""

    __slots__ = ("_clock", "client", "left_s")

    def __init__(self, client: str = "", *, clock: Callable[[], float] = time.thread_time) -> None:
        """Begins with the full budget.

        Args:
            client: The name of the client, whose turns in the thread the request uses.
            clock: Returns the CPU time of the current thread in seconds.
        """
        self.client = client
        self.left_s = INLINE_S
        self._clock = clock

    def run(self, work: Callable[[], T], most_s: float = INLINE_S) -> T:
        """Runs work and measures its time; returns its result or raises its exception.

        Args:
            work: The work.
            most_s: The most CPU seconds that it may use.
        """
        began, token = self._clock(), inline_left_s.set(min(self.left_s, most_s))
        try:
            return work()
        finally:
            inline_left_s.reset(token)
            self.left_s -= self._clock() - began


inline_time: ContextVar[InlineTime | None] = ContextVar("inline_time", default=None)
"""The time budget of the request that the current task serves; None if each piece of work has its own."""
inline_left_s: ContextVar[float | None] = ContextVar("inline_left_s", default=None)
"""The CPU seconds for the work that is running, if it runs on the event loop; otherwise None."""


class _Job(Generic[T]):
    """A piece of work for the thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._work = work

    def run(self) -> None:
        """Does the work, unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:
            self.future.set_exception(error)
            del self  # the error's traceback refers to this frame: a cycle that would keep a large input alive
        else:
            self.future.set_result(result)


class Offload:
    """Runs work with large bodies, templates and schemas in one thread, which is started by the first work."""

    def __init__(self, max_bytes: int) -> None:
        """Creates an empty queue, without starting the thread.

        Args:
            max_bytes: The most bytes of input that may be queued or in work. More is refused, since many large requests
                would fill the memory.
        """
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "offload")
        self._turn_left_s = INLINE_S
        self._waiting: OrderedDict[str, RoundRobin[_Job[Any]]] = OrderedDict()  # by client, and then by request

    async def run(self, size: int, work: Callable[[], T], *, inline_below: int = 0) -> T:
        """Runs work in the thread or, if its input is small, at once; returns its result.

        If the caller is cancelled, queued work is dropped, but running work is finished.

        Args:
            size: The approximate size of its input in bytes.
            work: The work. Its exceptions are raised in the caller.
            inline_below: Work on a smaller input runs at once on the event loop, as long as its request has time left
                there.

        Raises:
            Unavailable: Too much input is queued.
        """
        request = inline_time.get() or InlineTime()
        if size < inline_below and request.left_s > 0 and self._turn_left_s > 0:
            try:
                return self._run_inline(request, work)
            except TooSlowInline:
                pass
        if self._bytes and self._bytes + size > self._max_bytes:
            raise Unavailable("too many large requests at once", code="too_many_large_requests")
        job = _Job(partial(copy_context().run, work))
        with self._lock:
            self._bytes += size
            self._waiting.setdefault(request.client, RoundRobin()).add(request, job)
        job.future.add_done_callback(lambda _: self._release(size))  # in the worker thread, or in the one that cancels
        self._pool.submit(self._run_next)
        future = asyncio.wrap_future(job.future)
        try:
            return await future
        finally:
            del future, job  # an error's traceback refers to this frame: a cycle that would keep a large input alive

    def _run_inline(self, request: InlineTime, work: Callable[[], T]) -> T:
        if self._turn_left_s == INLINE_S:
            asyncio.get_running_loop().call_soon(self._next_turn)
        before_s = request.left_s
        try:
            return request.run(work, self._turn_left_s)
        finally:
            self._turn_left_s -= before_s - request.left_s

    def _next_turn(self) -> None:
        self._turn_left_s = INLINE_S

    def _run_next(self) -> None:
        """Runs the work whose turn it is, in the thread. It is called once for each piece of work."""
        if (job := self._next()) is not None:
            job.run()
        del job  # as in _Job.run

    def _next(self) -> _Job[Any] | None:
        with self._lock:
            if not self._waiting:
                return None
            client, requests = self._waiting.popitem(last=False)
            job = requests.next()
            if requests:
                self._waiting[client] = requests
            return job

    def _release(self, size: int) -> None:
        with self._lock:
            self._bytes -= size

    def close(self) -> None:
        """Refuses further work, and drops queued work."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        while (job := self._next()) is not None:
            job.future.cancel()


class InFlight:
    """Counts current uses, with an event for when there are none. As a context manager it is one use."""

    def __init__(self) -> None:
        self.on_none: Callable[[], None] | None = None
        """Called when the last use has ended."""
        self._count = 0
        self._none: asyncio.Event | None = None  # exists while a task waits for it

    def __len__(self) -> int:
        return self._count

    def add(self) -> None:
        """Counts one more use."""
        self._count += 1

    def remove(self) -> None:
        """Counts one use less."""
        self._count -= 1
        if not self._count:
            if self._none is not None:
                self._none.set()
                self._none = None
            if self.on_none is not None:
                self.on_none()

    def __enter__(self) -> None:
        self.add()

    def __exit__(self, *_: object) -> None:
        self.remove()

    async def drained(self) -> None:
        if self._count:
            self._none = self._none or asyncio.Event()
            await self._none.wait()


MAX_WAIT_S = 30.0
"""The most seconds to wait for room in a budget; after that the request gets a 503 with Retry-After."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits for an amount of a budget."""

    client: str
    """The client of the request."""
    amount: int
    """The amount."""
    granted: asyncio.Future[bool]
    """Done when the wait is over, with whether the amount was lent."""


def share(most: int) -> int:
    """Returns how much of an amount one client may hold for a long time, so that others find some at once."""
    return max(1, most - most // 4)


class Budget:
    """A limited amount that requests share, such as memory: who needs more than is left waits for a while.

    The clients that wait take turns, and none may hold more than its share, so that others find some at once.
    """

    def __init__(
        self,
        most: int,
        most_waiting: int | None = None,
        refusal: str = "",
        code: str = "",
        on_idle: Callable[[], None] | None = None,
        *,
        most_of_client: int | None = None,
    ) -> None:
        """Creates a budget of which nothing is lent.

        Args:
            most: The most that is lent at once. A larger amount is lent only if nothing else is.
            most_waiting: The most that may wait in total, and a client's share of that. A further request gets a 503 at
                once, unless it would be the only one that waits. None for no limit, and none of the time to wait.
            refusal: The message of the 503.
            code: The code of the 503.
            on_idle: Called when everything has been returned.
            most_of_client: The share of one client; None for the usual one.
        """
        self._most = most
        self._share = share(most) if most_of_client is None else most_of_client
        self._most_waiting = most_waiting
        self._refusal = refusal
        self._code = code
        self._on_idle = on_idle
        self._lent: Counter[str] = Counter()  # by client, as is the amount for which its requests wait
        self._wanted: Counter[str] = Counter()
        self._queue: RoundRobin[_Waiter] = RoundRobin()
        self._first: _Waiter | None = None  # taken from the queue, and waiting for room

    @property
    def used(self) -> int:
        """The amount on loan."""
        return self._lent.total()

    @property
    def waiting(self) -> int:
        """The amount for which requests wait."""
        return self._wanted.total()

    async def acquire(self, amount: int, client: str = "") -> Lease:
        """Borrows an amount, waiting for room if necessary.

        Args:
            amount: The amount.
            client: The client of the request; "" for an unknown one, which has no share.

        Raises:
            Unavailable: Too many requests wait, or there was no room for MAX_WAIT_S seconds.
        """
        loop, timer = asyncio.get_running_loop(), None
        waiter = _Waiter(client, min(amount, self._most), loop.create_future())
        self._queue.add(client, waiter)
        self._wanted[client] += waiter.amount
        self._grant()
        if self._most_waiting is not None and not waiter.granted.done():
            if self._too_many_wait(waiter, self._most_waiting):
                self._end_wait(waiter)
            timer = loop.call_later(MAX_WAIT_S, self._end_wait, waiter)
        try:
            granted = await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self._end_wait(waiter)
            elif waiter.granted.result():  # the grant came in the same turn of the loop
                self.release(waiter.amount, client)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if not granted:
            raise Unavailable(self._refusal, code=self._code)
        return Lease(self, waiter.amount, client)

    def _too_many_wait(self, newcomer: _Waiter, most: int) -> bool:
        of_client = self._wanted[newcomer.client] if newcomer.client else 0
        return of_client > max(newcomer.amount, share(most)) or self.waiting > max(newcomer.amount, most)

    def _end_wait(self, waiter: _Waiter) -> None:
        """Ends a wait without success, because of a limit or because the client has left."""
        if waiter is self._first:
            self._first = None
        elif not self._queue.remove(waiter.client, waiter):
            return
        self._wanted -= Counter({waiter.client: waiter.amount})
        if not waiter.granted.done():
            waiter.granted.set_result(False)
        self._grant()  # a smaller one behind it may fit

    def release(self, amount: int, client: str) -> None:
        self._lent -= Counter({client: amount})  # keeps no zero
        self._grant()
        if amount and not self._lent and self._on_idle is not None:
            self._on_idle()

    def _grant(self) -> None:
        while self.used < self._most and (first := self._first or self._queue.next(self._within_share)) is not None:
            self._first = first
            if self.used + first.amount > self._most and not first.granted.done():
                return
            self._first = None
            self._wanted -= Counter({first.client: first.amount})
            if not first.granted.done():  # else its task has been cancelled, and has not run since
                self._lent[first.client] += first.amount
                first.granted.set_result(True)

    def _within_share(self, waiter: _Waiter) -> bool:
        lent = self._lent[waiter.client] if waiter.client else 0
        return not lent or lent + waiter.amount <= self._share

    def at_share(self, client: str) -> bool:
        """Returns whether a client holds its whole share."""
        return self._lent[client] >= self._share


class Lease:
    """The amount that one request has borrowed from a budget."""

    __slots__ = ("_amount", "_budget", "_client")

    def __init__(self, budget: Budget, amount: int, client: str = "") -> None:
        self._budget = budget
        self._amount = amount
        self._client = client

    def shrink(self, amount: int) -> None:
        """Returns a part to the budget, so that at most this amount is kept."""
        if amount < self._amount:
            rest, self._amount = self._amount - amount, amount
            self._budget.release(rest, self._client)

    def release(self) -> None:
        """Returns the whole amount to the budget. Idempotent."""
        self.shrink(0)

    def __enter__(self) -> None:
        """Does nothing: the amount is returned at the end of the `with` block."""

    def __exit__(self, *_: object) -> None:
        self.release()
