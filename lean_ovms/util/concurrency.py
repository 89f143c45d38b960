"""Work beside the event loop: one thread for what takes long in Python, such as large bodies, templates and schemas.

A thread of this interpreter, so the loop gets its turn within Python's switch interval while the thread runs Python;
one call into C keeps everybody waiting, which is why its input is bounded before. Knows nothing of what it works on.
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
"""For sys.setswitchinterval: what the loop waits for the thread, each time that both want to run (Python: 5 ms)."""

BRIEF_CHARACTERS = 1 << 20
"""Of a conversation; work on a longer one does not begin on the event loop."""


class Offload:
    """One worker thread, started by the first work, and the queue before it."""

    def __init__(self, most_bytes: int) -> None:
        """most_bytes: of input that waits or is worked on; more is refused, or a crowd would fill the memory."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "aside")

    async def run(self, size: int, work: Callable[[], T], *, brief: int = 0) -> T:
        """What work returns. size: of its input, about, in bytes. Raises what it raises, or Unavailable.

        brief: input smaller than this is worked on at once, in the caller's thread.
        Whoever is cancelled while waiting for the thread takes the work back; work that has begun ends by itself.
        """
        if size < brief:
            return work()
        if self._bytes and self._bytes + size > self._most_bytes:
            raise Unavailable("too many large requests at once", code="too_many_large_requests")
        with self._lock:
            self._bytes += size
        future = self._pool.submit(copy_context().run, work)
        future.add_done_callback(lambda _: self._over(size))  # called by the thread, or by who takes it back
        return await asyncio.wrap_future(future)

    def _over(self, size: int) -> None:
        with self._lock:
            self._bytes -= size

    def close(self) -> None:
        """Take no more work; what waits is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
