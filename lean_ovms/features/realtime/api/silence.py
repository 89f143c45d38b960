"""Notices that nobody has spoken for a while (OpenAI's idle_timeout_ms)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SilenceTimer:
    """The timer of one session. Audio begins it again whenever it has run out."""

    def __init__(self, seconds: Callable[[], float], ended: Callable[[], Awaitable[None]]) -> None:
        """Begins without waiting.

        Args:
            seconds: Returns how long silence may last at this moment; 0: there is no limit.
            ended: Is awaited when it has lasted as long as that.
        """
        self._seconds = seconds
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Starts the timer unless it runs."""
        if self._timer is None and (seconds := self._seconds()):
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def stop(self) -> None:
        """Stops the timer, as somebody speaks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._seconds():  # neither switched off, nor somebody speaking
            self._task = asyncio.ensure_future(self._ended())

    def close(self) -> None:
        """Stops the timer, and what it has started."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
