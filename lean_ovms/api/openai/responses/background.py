"""A response in the making that nobody has to wait for: it generates on, whoever comes, listens, leaves or cancels.

A Run owns its generation and its events; a Follower is one client's view of them, from any event on. Knows no HTTP and
not where responses are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ....errors import InternalError, RequestError
from ....models.generation import DeltaStream
from ....types import Json, Usage
from ...sse import DONE, PING
from .events import Events

logger = logging.getLogger("lean_ovms.api")


class BackgroundResponse:
    """One background response. frames: its events so far; the last one is there when `over` is set.

    keep: awaited with the final response object and all its frames before the last event is told.
    """

    def __init__(self, events: Events, generation: DeltaStream, keep: Callable[[Json, bytes], Awaitable[None]]) -> None:
        self.events = events
        self.frames = events.begin()
        self.over = False
        self._generation = generation
        self._keep = keep
        self._cancelled = False
        self._error: RequestError | None = None
        self._ended = False  # the generation is, and with it how this ends
        self._listeners: set[asyncio.Future[None]] = set()
        self.task = asyncio.get_running_loop().create_task(self._go())

    async def stop(self, error: RequestError | None = None) -> None:
        """End it now, as cancelled or with this error, and wait until that is kept. Nothing if it has ended."""
        if not self._ended:
            self._cancelled, self._error = error is None, error
            await self._generation.aclose()
        await asyncio.shield(self.task)

    async def more(self, count: int, timeout_s: float) -> bool:
        """Wait until there are more frames than count, or it is over. False: not within timeout_s (0: any time)."""
        while len(self.frames) <= count and not self.over:
            listener = asyncio.get_running_loop().create_future()
            self._listeners.add(listener)
            try:
                await asyncio.wait([listener], timeout=timeout_s or None)
            finally:
                self._listeners.discard(listener)
            if not listener.done():
                return False
        return True

    async def _go(self) -> None:
        error = await self._read()
        self._ended = True
        usage = Usage() if error else self._generation.usage
        final = self.events.finish_early(usage, error, cancelled=self._cancelled)
        last = self.events.end()
        try:
            await self._keep(final, b"".join([*self.frames, *last]))
        finally:
            self.over = True
            self._tell(last)

    async def _read(self) -> RequestError | None:
        """Read the generation to its end; what went wrong, if anything did."""
        try:
            async for deltas in self._generation:
                self._tell(self.events.deltas(deltas))
        except RequestError as error:
            return self._error or error
        except Exception:  # whatever it was, the client learns it from the response, the log has the details
            logger.exception("a background response broke")
            return InternalError()
        finally:
            await self._generation.aclose()
        return self._error

    def _tell(self, frames: list[bytes]) -> None:
        self.frames += frames
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)


class EventFollower:
    """A ByteStream of a run's events, from number `start` on; closing it does nothing to the run."""

    def __init__(self, run: BackgroundResponse, start: int, ping_s: float) -> None:
        self._run = run
        self._next = start
        self._ping_s = ping_s
        self._done = False

    def __aiter__(self) -> EventFollower:
        return self

    async def __anext__(self) -> bytes:
        if self._done:
            raise StopAsyncIteration
        if not await self._run.more(self._next, self._ping_s):
            return PING
        frames = self._run.frames[self._next :]
        self._next += len(frames)
        if self._run.over:
            self._done = True
            frames.append(DONE)
        return b"".join(frames)

    async def aclose(self) -> None:
        self._done = True


def frames_from(whole: bytes, start: int) -> bytes:
    """A kept stream from event number `start` on, with its terminator."""
    frames = whole.split(b"\n\n")[:-1]  # JSON holds no line breaks
    return b"".join(frame + b"\n\n" for frame in frames[start:]) + DONE
