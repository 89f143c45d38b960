"""Notices that nobody has spoken for a while (OpenAI's idle_timeout_ms)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SilenceTimer:
    """One session's. It is begun again whenever it has ended, by audio."""

    def __init__(self, seconds: Callable[[], float], ended: Callable[[], Awaitable[None]]) -> None:
        """seconds: how long it may be silent now; 0: there is no limit. ended: it was silent for so long."""
        self._seconds = seconds
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Wait from now on, unless it does."""
        if self._timer is None and (seconds := self._seconds()):
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def stop(self) -> None:
        """Somebody speaks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._seconds():  # neither switched off, nor somebody speaking
            self._task = asyncio.ensure_future(self._ended())

    def close(self) -> None:
        """Wait no more."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
