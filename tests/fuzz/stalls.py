"""Measures how long an event loop is blocked in CPU time, which does not depend on other work of the machine."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Longest:
    """`seconds` is the most CPU time of one call of a task or callback."""

    def __init__(self) -> None:
        self.seconds = 0.0


@contextmanager
def longest_turn() -> Iterator[Longest]:
    """Watches every callback of asyncio's own loop in this thread, except the pauses of the garbage collector."""
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
