"""Background responses, which are generated to the end whether or not a client reads their events.

A BackgroundResponse owns its generation and its events. Clients can read the events from any number on. This module
knows no HTTP, and not where responses are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from ...api.sse import DONE, PING
from ...errors import RequestError, reported
from ...models.generation import DeltaStream
from ...types import Json, Usage
from ...types.push import Sink
from ...util.chunked_json import PIECE_BYTES
from .events import Events
from .output_items import Frame, joined, pieces_of

logger = logging.getLogger("lean_ovms.api")


class BackgroundResponse:
    """One background response, while it is generated."""

    def __init__(
        self,
        events: Events,
        opening: list[Frame],
        generation: DeltaStream,
        save: Callable[[Json, list[bytes]], Awaitable[None]],
    ) -> None:
        """Begins with the frames of the opening events; the generation is started by its own task.

        Args:
            events: Writes the events of the response.
            opening: The frames of the events so far.
            generation: The stream of deltas to read.
            save: Stores the final response and all its frames, in pieces. Awaited before the last event is published.
        """
        self.events = events
        self.frames = opening
        self.finished = False
        self._generation = generation
        self._save = save
        self._cancelled = False
        self._error: RequestError | None = None
        self._read_all = False  # whether the generation has finished, so that the status is known
        self._news = asyncio.Event()  # set when there are more frames than at its creation
        self.task = asyncio.get_running_loop().create_task(self._produce())

    async def stop(self, error: RequestError | None = None) -> None:
        """Stops a response that has not finished as cancelled, or failed with `error`, and waits until it is stored."""
        if not self._read_all:
            self._cancelled, self._error = error is None, error
            await self._generation.aclose()
        await asyncio.shield(self.task)

    async def follow(self, start: int, ping_s: float) -> AsyncGenerator[bytes, None]:
        """Yields the events from number `start` to the last one, in pieces.

        While there is no new event, it yields a ping every `ping_s` seconds; 0 for no pings.
        """
        while True:
            frames, finished, news = self.frames[start:], self.finished, self._news
            start += len(frames)
            for piece in joined(frames):
                yield piece
            if finished:
                yield DONE
                return
            if frames:
                continue
            try:
                await asyncio.wait_for(news.wait(), ping_s or None)
            except asyncio.TimeoutError:
                yield PING

    async def _produce(self) -> None:
        error = await self._read_generation()
        self._read_all = True
        usage = Usage() if error else self._generation.usage
        last: list[Frame] = []
        try:
            final = self.events.finalize(usage, error, cancelled=self._cancelled)
            last = self.events.end()
            await self._save(final, pieces_of([*self.frames, *last]))
        finally:
            self.finished = True
            self._publish(last)

    async def _read_generation(self) -> RequestError | None:
        """Publishes the events of the generation to its end. Returns its error, or None."""
        try:
            await self._generation.push_to(Sink(lambda deltas: self._publish(self.events.deltas(deltas))))
        except Exception as error:  # the response object contains the error
            return self._error or reported(error, logger, "a background response failed")
        finally:
            await self._generation.aclose()
        return self._error

    def _publish(self, frames: list[Frame]) -> None:
        self.frames += frames
        self._news.set()
        self._news = asyncio.Event()


def frames_from(whole: bytes, start: int) -> list[bytes]:
    """Returns the part of a stored stream from event number `start` on, with the terminator, in pieces."""
    at = 0
    for _ in range(start):
        at = whole.find(b"\n\n", at) + 2  # JSON holds no line breaks
        if at < 2:
            return [DONE]
    return [*(whole[place : place + PIECE_BYTES] for place in range(at, len(whole), PIECE_BYTES)), DONE]
