"""Tells a silent engine from a busy one. Knows time and three callables; no process, no records.

Looks only while somebody waits for the engine: an idle server has no timer running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """Calls ping after limit_s / 2 without a word from the engine, and bite after limit_s."""

    def __init__(self, limit_s: float, busy: Callable[[], bool], ping: Callable[[], None], bite: Callable[[], None]):
        self._limit = limit_s
        self._busy = busy
        self._ping = ping
        self._bite = bite
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Something is about to be in flight: its silence counts from now, not from when it was last busy."""
        if self._timer is not None and self._busy():
            return
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._timer is None:
            self._look_at(self._heard_at + self._limit / 2, loop)

    def heard(self, now: float) -> None:
        """Something came from the engine at that loop time."""
        self._heard_at = now

    def sleep(self) -> None:
        """There is nothing to watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_at(when, self._look, when, loop)

    def _look(self, due: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self._busy():
            return
        now = loop.time()
        if now - due > self._limit / 4:
            self._heard_at = now  # this process stood still (SIGSTOP, a blocked loop): that proves nothing
        silent_s = now - self._heard_at
        if silent_s >= self._limit:
            self._bite()
        elif silent_s >= self._limit / 2:
            self._ping()
            self._look_at(self._heard_at + self._limit, loop)
        else:
            self._look_at(self._heard_at + self._limit / 2, loop)
