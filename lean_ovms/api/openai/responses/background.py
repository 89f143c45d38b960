"""Background responses: generated to the end whether or not a client reads their events.

A BackgroundResponse owns its generation and its events; an EventFollower streams them to one client, from any event on;
a ResponsePoller polls the store for the response of another server. Knows no HTTP and not where responses are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import orjson

from ....errors import InternalError, RequestError
from ....models.generation import DeltaStream
from ....push_types import Sink
from ....types import Json, Usage
from ...sse import DONE, PING
from .events import Events

logger = logging.getLogger("lean_ovms.api")


class BackgroundResponse:
    """One background response. frames: its events so far, all of them when `finished` is set.

    save: awaited with the final response object and all its frames before the last event is published.
    """

    def __init__(self, events: Events, generation: DeltaStream, save: Callable[[Json, bytes], Awaitable[None]]) -> None:
        self.events = events
        self.frames = events.start()
        self.finished = False
        self._generation = generation
        self._save = save
        self._cancelled = False
        self._error: RequestError | None = None
        self._read_all = False  # the generation has finished, so the status is known
        self._waiters: set[asyncio.Future[None]] = set()
        self.task = asyncio.get_running_loop().create_task(self._produce())

    async def stop(self, error: RequestError | None = None) -> None:
        """Stop now, as cancelled or with this error, and wait until it is stored. No effect if it has finished."""
        if not self._read_all:
            self._cancelled, self._error = error is None, error
            await self._generation.aclose()
        await asyncio.shield(self.task)

    async def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait for more frames than count, or the end. False: neither within timeout_s (0: no limit)."""
        while len(self.frames) <= count and not self.finished:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=timeout_s or None)
            finally:
                self._waiters.discard(waiter)
            if not waiter.done():
                return False
        return True

    async def _produce(self) -> None:
        error = await self._read_generation()
        self._read_all = True
        usage = Usage() if error else self._generation.usage
        final = self.events.finalize(usage, error, cancelled=self._cancelled)
        last = self.events.end()
        try:
            await self._save(final, b"".join([*self.frames, *last]))
        finally:
            self.finished = True
            self._publish(last)

    async def _read_generation(self) -> RequestError | None:
        """Publish the generation to its end; its error, if there is one."""
        try:
            await self._generation.push_to(Sink(lambda deltas: self._publish(self.events.deltas(deltas))))
        except RequestError as error:
            return self._error or error
        except Exception:  # the response object has the error, the log the details
            logger.exception("a background response failed")
            return InternalError()
        finally:
            await self._generation.aclose()
        return self._error

    def _publish(self, frames: list[bytes]) -> None:
        self.frames += frames
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class EventFollower:
    """A ByteStream of a background response's events, from number `start` on; closing it does not end the response."""

    def __init__(self, background: BackgroundResponse, start: int, ping_s: float) -> None:
        self._background = background
        self._next = start
        self._ping_s = ping_s

    async def push_to(self, sink: Sink[bytes]) -> None:
        background, finished = self._background, False
        while not finished:
            if not await background.wait_for(self._next, self._ping_s):
                await sink.send(PING)
                continue
            frames, finished = background.frames[self._next :], background.finished
            self._next += len(frames)
            await sink.send(b"".join(frames) + (DONE if finished else b""))

    async def aclose(self) -> None:
        """Nothing to release: a follower that is not sent holds nothing."""


class ResponsePoller:
    """A ByteStream of a response that another server generates: pings until it has finished, then all its events.

    load: returns the stored stream, or None while the response runs. If it raises RequestError (the response was
    deleted, or failed without a stream), the stream ends with that error.
    """

    def __init__(
        self, load: Callable[[], Awaitable[bytes | None]], start: int, ping_s: float, poll_interval_s: float
    ) -> None:
        self._load = load
        self._start = start
        self._ping_s = ping_s
        self._poll_interval_s = poll_interval_s

    async def push_to(self, sink: Sink[bytes]) -> None:
        waited = 0.0
        try:
            while (whole := await self._load()) is None:
                await asyncio.sleep(self._poll_interval_s)
                waited += self._poll_interval_s
                if self._ping_s and waited >= self._ping_s:
                    waited = 0.0
                    await sink.send(PING)
        except RequestError as error:
            sink.push(b"event: error\ndata: " + orjson.dumps(_event(error)) + b"\n\n" + DONE)
        else:
            sink.push(frames_from(whole, self._start))

    async def aclose(self) -> None:
        """Nothing to release."""


def _event(error: RequestError) -> Json:
    """https://platform.openai.com/docs/api-reference/responses-streaming/error"""
    return {"type": "error", "code": error.code, "message": error.message, "param": None, "sequence_number": 0}


def frames_from(whole: bytes, start: int) -> bytes:
    """A stored stream from event number `start` on, with its terminator."""
    frames = whole.split(b"\n\n")[:-1]  # JSON holds no line breaks
    return b"".join(frame + b"\n\n" for frame in frames[start:]) + DONE
