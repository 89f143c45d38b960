"""Concurrency helpers: `Offload` runs long Python work in one thread beside the event loop, `InFlight` counts uses.

Offload's thread belongs to this interpreter: while it runs Python, the event loop gets its turn within the switch
interval; a single long call into C blocks the loop, so callers limit the input of such calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from ..errors import Unavailable

T = TypeVar("T")

SWITCH_INTERVAL_S = 0.001
"""For sys.setswitchinterval: how long the loop waits for the thread each time both want to run (Python: 5 ms)."""

INLINE_CHARACTERS = 1 << 20
"""Of a conversation; work on a longer one is never run on the event loop."""


class Offload:
    """One worker thread, started by the first work, and its queue: for large bodies, templates and schemas."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: of input queued or worked on; more is refused, or many large requests would fill the memory."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "offload")

    async def run(self, size: int, work: Callable[[], T], *, inline_below: int = 0) -> T:
        """What work returns. size: of its input, in bytes, roughly. Raises what it raises, or Unavailable.

        inline_below: work on smaller input runs at once, in the caller's thread.
        Cancelling the caller removes queued work from the queue; work that is running runs to its end.
        """
        if size < inline_below:
            return work()
        if self._bytes and self._bytes + size > self._max_bytes:
            raise Unavailable("too many large requests at once", code="too_many_large_requests")
        with self._lock:
            self._bytes += size
        future = self._pool.submit(copy_context().run, work)
        future.add_done_callback(lambda _: self._release(size))  # in the worker thread, or in the one that cancels
        try:
            return await asyncio.wrap_future(future)
        finally:
            del future  # its error's traceback refers to this frame: a cycle that would keep a large input alive

    def _release(self, size: int) -> None:
        with self._lock:
            self._bytes -= size

    def close(self) -> None:
        """Accept no more work; queued work is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class InFlight:
    """A count of current uses, and an event for none. As a context manager, one use.

    on_none: called when the last use has ended.
    """

    def __init__(self) -> None:
        self.on_none: Callable[[], None] | None = None
        self._count = 0
        self._none: asyncio.Event | None = None  # while somebody waits for it

    def __len__(self) -> int:
        return self._count

    def add(self) -> None:
        """One more use."""
        self._count += 1

    def remove(self) -> None:
        """One use less."""
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
        """Wait until there is none."""
        if self._count:
            self._none = self._none or asyncio.Event()
            await self._none.wait()
