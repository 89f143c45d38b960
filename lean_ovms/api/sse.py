"""A generation as server-sent events, for every endpoint.

The endpoint's renderer turns deltas into bytes; this module handles the generation, the keep-alive comments,
the in-band error and the terminator. Format:
https://html.spec.whatwg.org/multipage/server-sent-events.html, `data: [DONE]` as OpenAI's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import orjson

from ..errors import InternalError, RequestError
from ..push_types import Pushing, Sink
from ..types import Response, Usage

logger = logging.getLogger("lean_ovms.api")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_UNIT = 16
HEADERS = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]


D = TypeVar("D")
"""What a stream consists of: deltas of a generation, or events of a transcription."""


class Source(Protocol[D]):
    """What is streamed, as models.generation.DeltaStream."""

    @property
    def usage(self) -> Usage: ...

    async def __anext__(self) -> list[D]: ...

    def wake(self) -> None: ...

    async def aclose(self) -> None: ...


class Renderer(Protocol[D]):
    """The bytes of one stream, made by an endpoint: for deltas, for the end, for an error. Stateful."""

    def deltas(self, deltas: list[D]) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...

    def failed(self, error: RequestError) -> bytes: ...


def padding(size: int) -> bytes:
    """Random characters that fill `size` bytes up to a multiple of 16 (stream_options.include_obfuscation).

    The length of every event is visible on an encrypted connection, and lengths reveal much about tokens.
    """
    return secrets.token_urlsafe(_UNIT)[: _UNIT - size % _UNIT].encode()


def event(data: Any) -> bytes:
    """One data-only event."""
    return b"data: %b\n\n" % orjson.dumps(data)


def response(generation: Source[D], renderer: Renderer[D], ping_s: float, headers: list[tuple[str, str]]) -> Response:
    """A 200 that streams this generation and closes it in every case."""
    return Response(200, HEADERS + headers, EventStream(generation, renderer, ping_s))


class EventStream(Pushing[bytes], Generic[D]):
    """The ByteStream of one generation. A class, not a generator: it can be closed without having been started.

    opening: bytes that are sent before the first delta exists. before_end: awaited before the renderer's last bytes,
    with the error if there is one. ping, done: keep-alive and terminator, where the API has its own.
    """

    def __init__(
        self,
        generation: Source[D],
        renderer: Renderer[D],
        ping_s: float,
        *,
        opening: bytes = b"",
        before_end: Callable[[RequestError | None], Awaitable[None]] | None = None,
        ping: bytes = PING,
        done: bytes = DONE,
    ) -> None:
        self._generation = generation
        self._renderer = renderer
        self._ping_s = ping_s
        self._opening = opening
        self._before_end = before_end
        self._timer: asyncio.TimerHandle | None = None
        self._clock = time.monotonic
        self._sent_at = 0.0
        self._ping_due = False
        self._ping = ping
        self._end = done
        self._push: Callable[[bytes], None]
        self._done = False

    def __aiter__(self) -> EventStream[D]:
        return self

    def push_to(self, sink: Sink[bytes]) -> None:
        """If the generation can."""
        if isinstance(self._generation, Pushing):
            self._push = sink.push
            self._generation.push_to(Sink(sink.ready, self._push_deltas))

    def _push_deltas(self, deltas: list[D]) -> None:
        """Push what `__anext__` would return."""
        if data := self._renderer.deltas(deltas):
            self._sent_at = self._clock()
            self._push(data)

    async def __anext__(self) -> bytes:
        if self._done:
            raise StopAsyncIteration
        if self._opening:
            opening, self._opening = self._opening, b""
            return opening
        if self._timer is None and self._ping_s:
            self._sent_at = self._clock()
            self._timer = asyncio.get_running_loop().call_later(self._ping_s, self._check_silence)
        try:
            while True:
                # Many deltas may render to nothing: hidden reasoning, a tool call that is sent when it is complete.
                if (deltas := await self._generation.__anext__()) and (data := self._renderer.deltas(deltas)):
                    self._sent_at = self._clock()
                    return data
                if self._ping_due:
                    self._ping_due = False
                    return self._ping
        except StopAsyncIteration:
            return await self._last(None)
        except RequestError as error:
            return await self._last(error)
        except Exception:
            # The status 200 has been sent: the error goes into the stream, the details into the log.
            logger.exception("a stream failed")
            return await self._last(InternalError())

    async def _last(self, error: RequestError | None) -> bytes:
        self._stop()
        if self._before_end is not None:
            await self._before_end(error)
        last = self._renderer.end(self._generation.usage) if error is None else self._renderer.failed(error)
        return last + self._end

    def _check_silence(self) -> None:
        """One timer for a whole stream: a timer for each chunk would cost every chunk."""
        left_s = self._sent_at + self._ping_s - self._clock()
        if left_s <= 0:
            self._ping_due = True
            self._generation.wake()
            left_s = self._ping_s
        self._timer = asyncio.get_running_loop().call_later(left_s, self._check_silence)

    def _stop(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()

    async def aclose(self) -> None:
        self._stop()
        await self._generation.aclose()
