"""Detects that nobody has spoken for a while (OpenAI's idle_timeout_ms)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SilenceTimer:
    """The timer of a session. If it has expired, new audio starts it again."""

    def __init__(self, seconds: Callable[[], float], ended: Callable[[], Awaitable[None]]) -> None:
        """Creates the timer without starting it.

        Args:
            seconds: Returns how many seconds of silence are currently allowed; 0 for no limit.
            ended: Awaited when the silence has lasted that long.
        """
        self._seconds = seconds
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Starts the timer unless it is running."""
        if self._timer is None and (seconds := self._seconds()):
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def stop(self) -> None:
        """Stops the timer because somebody is speaking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._seconds():  # the timeout is on, and nobody is speaking
            self._task = asyncio.ensure_future(self._ended())

    def close(self) -> None:
        """Stops the timer and the call that it has started."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
