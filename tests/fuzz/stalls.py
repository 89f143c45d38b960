"""How long an event loop was held up, in CPU time, so that a busy machine makes no difference."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Longest:
    """seconds: of CPU time that one turn of a task or callback took at most."""

    def __init__(self) -> None:
        self.seconds = 0.0


@contextmanager
def longest_turn() -> Iterator[Longest]:
    """Watches every callback of asyncio's own loop in this thread; the collector's pauses do not count."""
    longest, run = Longest(), asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        longest.seconds = max(longest.seconds, time.thread_time() - began)

    collects = gc.isenabled()
    gc.disable()
    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield longest
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        if collects:
            gc.enable()
