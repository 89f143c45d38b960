"""Concurrency helpers: `Offload` runs long Python work in one thread outside the event loop, `InFlight` counts uses.

Offload's thread belongs to this interpreter: while it runs Python, the event loop gets its turn within the switch
interval; a single long call into C blocks the loop, so callers limit the input of such calls.

Short work is done at once, on the event loop, which saves the change of threads. What a request may do there is one
budget, whatever the number of its parts, and so is what all requests may do in one turn of the loop: beyond it, short
work goes to the thread, too. There the clients take turns, and the requests of a client.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import Unavailable
from .round_robin import RoundRobin

T = TypeVar("T")

SWITCH_INTERVAL_S = 0.001
"""For sys.setswitchinterval: seconds the loop waits for the thread each time both want to run (Python: 5 ms)."""

INLINE_CHARACTERS = 1 << 20
"""Characters of a conversation; work on a longer one is never run on the event loop."""

INLINE_S = 0.01
"""CPU time of a request's work on the event loop, and of all in one turn of it; a template takes 0.1 to 0.5 ms."""


class TooSlowInline(Exception):
    """Raised by work that has used up its request's time on the event loop: start it again in the thread."""


class InlineTime:
    """The CPU time that is left to one request on the event loop."""

    __slots__ = ("_clock", "client", "left_s")

    def __init__(self, client: str = "", *, clock: Callable[[], float] = time.thread_time) -> None:
        """Begins with all of it.

        Args:
            client: The client in whose turns the request's other work is done.
            clock: Returns the CPU time of the thread in seconds.
        """
        self.client = client
        self.left_s = INLINE_S
        self._clock = clock

    def run(self, work: Callable[[], T], most_s: float = INLINE_S) -> T:
        """Runs work, and returns or raises what it does.

        Args:
            work: The work.
            most_s: The seconds that it may take at most.
        """
        began, token = self._clock(), inline_left_s.set(min(self.left_s, most_s))
        try:
            return work()
        finally:
            inline_left_s.reset(token)
            self.left_s -= self._clock() - began


inline_time: ContextVar[InlineTime | None] = ContextVar("inline_time", default=None)
"""The inline time of the request which this task serves; None: each piece of work is a request of its own."""
inline_left_s: ContextVar[float | None] = ContextVar("inline_left_s", default=None)
"""CPU time for the work that is running, if it runs on the event loop."""


class _Job(Generic[T]):
    """Work for the thread."""

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
    """One worker thread, started by the first work, and its queue: for large bodies, templates and schemas."""

    def __init__(self, max_bytes: int) -> None:
        """Begins without work.

        Args:
            max_bytes: The most bytes of input that may wait or be worked on. More is refused, or many large requests
                would fill the memory.
        """
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "offload")
        self._turn_left_s = INLINE_S
        self._waiting: OrderedDict[str, RoundRobin[_Job[Any]]] = OrderedDict()  # by client, and then by request

    async def run(self, size: int, work: Callable[[], T], *, inline_below: int = 0) -> T:
        """Returns what work returns, which is done in the thread or, if it is small, at once.

        Cancelling the caller removes queued work from the queue; work that is running runs to its end.

        Args:
            size: About how many bytes its input has.
            work: The work; it may raise anything, which the caller gets.
            inline_below: Work on a smaller input runs at once, in the caller's thread, while its request has time for
                it.

        Raises:
            Unavailable: Too much input waits already.
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
        """Runs the work whose turn it is: of as many calls as works each runs one."""
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
        """Accepts no more work; queued work is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        while (job := self._next()) is not None:
            job.future.cancel()


class InFlight:
    """A count of current uses, and an event for none. As a context manager, one use."""

    def __init__(self) -> None:
        self.on_none: Callable[[], None] | None = None
        """Is called when the last use has ended."""
        self._count = 0
        self._none: asyncio.Event | None = None  # while somebody waits for it

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
