"""Distinguishes an engine that hangs from a busy one. Knows time and three callables; no process, no records.

It has a timer only while requests are in flight: an idle server has none running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """Calls ping after limit_s / 2 without a record from the engine, and on_timeout after limit_s."""

    def __init__(
        self, limit_s: float, busy: Callable[[], bool], ping: Callable[[], None], on_timeout: Callable[[], None]
    ) -> None:
        self._limit = limit_s
        self._busy = busy
        self._ping = ping
        self._on_timeout = on_timeout
        self._last_record_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Called before a request is in flight: silence counts from now, not from when the engine was last busy."""
        if self._timer is not None and self._busy():
            return
        loop = asyncio.get_running_loop()
        self._last_record_at = loop.time()
        if self._timer is None:
            self._check_at(self._last_record_at + self._limit / 2, loop)

    def record_received(self, now: float) -> None:
        """Notes that a record came from the engine at that loop time."""
        self._last_record_at = now

    def stop(self) -> None:
        """Cancels the timer; start() sets it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_at(when, self._check, when, loop)

    def _check(self, due: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self._busy():
            return
        now = loop.time()
        if now - due > self._limit / 4:
            self._last_record_at = now  # this process stood still (SIGSTOP, a blocked loop): that proves nothing
        silent_s = now - self._last_record_at
        if silent_s >= self._limit:
            self._on_timeout()
        elif silent_s >= self._limit / 2:
            self._ping()
            self._check_at(self._last_record_at + self._limit, loop)
        else:
            self._check_at(self._last_record_at + self._limit / 2, loop)
