"""Streams a generation as server-sent events, for every endpoint.

The endpoint's renderer turns deltas into bytes. This module sends them, the keep-alive comments, an error that occurs
during the stream, and the terminator. The format is that of
https://html.spec.whatwg.org/multipage/server-sent-events.html, with OpenAI's `data: [DONE]` at the end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Protocol, TypeVar

import orjson

from ..errors import RequestError, reported
from ..types import Response, Usage
from ..types.push import Sink, wake

logger = logging.getLogger("lean_ovms.api")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_UNIT = 16
HEADERS = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]


D = TypeVar("D")
"""The items of a stream: deltas of a generation, or events of a transcription."""


class Source(Protocol[D]):
    """A source of streamed events, such as models.generation.DeltaStream."""

    @property
    def usage(self) -> Usage: ...

    async def push_to(self, sink: Sink[list[D]]) -> None: ...

    async def aclose(self) -> None: ...


Rendered = bytes | list[bytes]
"""The bytes of events; a list of pieces if they are too large to send in one iteration of the event loop."""


class Renderer(Protocol[D]):
    """Makes the bytes of one stream for an endpoint. It keeps state between calls."""

    def deltas(self, deltas: list[D]) -> Rendered:
        """Returns the events for these deltas."""

    def end(self, usage: Usage) -> Rendered:
        """Returns the last events before the terminator; by default nothing."""
        return b""

    def failed(self, error: RequestError) -> Rendered:
        """Returns the last event of a stream that fails; by default the error object."""
        return event(error.body())


def padding(size: int) -> bytes:
    """Returns random characters that fill up `size` bytes to a multiple of 16 (stream_options.include_obfuscation).

    The length of each event is visible on an encrypted connection, and reveals much about its tokens.
    """
    return secrets.token_urlsafe(_UNIT)[: _UNIT - size % _UNIT].encode()


def event(data: Any, name: str = "") -> bytes:
    """Returns the bytes of one event. Without a name it has only data."""
    return b"%bdata: %b\n\n" % (b"event: %b\n" % name.encode() if name else b"", orjson.dumps(data))


def response(
    generation: Source[D], renderer: Renderer[D], ping_s: float, headers: list[tuple[str, str]], **options: Any
) -> Response:
    """Returns a response with status 200 that streams a generation, and closes the generation in any case.

    Args:
        generation: The generation.
        renderer: Turns the deltas into events.
        ping_s: The seconds without an event after which a keep-alive is sent; 0 for never.
        headers: Additional headers of the response.
        **options: Further fields of the EventStream.
    """
    return Response(200, HEADERS + headers, EventStream(generation, renderer, ping_s, **options))


@dataclass(eq=False)
class EventStream(Generic[D]):
    """The ByteStream of one generation. Since it is not a generator, it can be closed without having been started."""

    generation: Source[D]
    """The generation."""
    renderer: Renderer[D]
    """Turns the deltas into events."""
    ping_s: float
    """The seconds without an event after which a keep-alive is sent; 0 for never."""
    _: KW_ONLY
    opening: bytes = b""
    """The bytes that are sent at the start, before the first delta."""
    before_end: Callable[[RequestError | None], Awaitable[None]] | None = None
    """Awaited before the renderer's last bytes, with the error if the generation failed."""
    ping: bytes = PING
    """The bytes of a keep-alive; an API may have its own."""
    done: bytes = DONE
    """The terminator; an API may have its own."""

    def __post_init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._clock = time.monotonic
        self._sent_at = 0.0
        self._sink: Sink[bytes]
        self._closed = False
        self._left: deque[bytes] = deque()  # to be sent, because something before it was large
        self._sending: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None  # done when nothing is left

    async def push_to(self, sink: Sink[bytes]) -> None:
        self._sink = sink
        error: RequestError | None = None
        if self.opening:
            sink.push(self.opening)
        if self.ping_s:
            self._sent_at = self._clock()
            self._timer = asyncio.get_running_loop().call_later(self.ping_s, self._check_silence)
        try:
            await self.generation.push_to(Sink(self._push, self._paused))
            await self._all_sent()
        except Exception as failure:  # the status 200 has been sent: the error goes into the stream
            error = reported(failure, logger, "a stream failed")
        finally:
            self._stop_timer()
        if self._closed:
            return
        if self.before_end is not None:
            await self.before_end(error)
        await self._all_sent()
        last = self.renderer.end(self.generation.usage) if error is None else self.renderer.failed(error)
        self._write(last + self.done if isinstance(last, bytes) else [*last, self.done])
        await self._all_sent()

    def _push(self, deltas: list[D]) -> None:
        """Renders deltas and sends the result. This is the hot path.

        Many deltas render to nothing: hidden reasoning, or a tool call that is sent once it is complete.
        """
        if data := self.renderer.deltas(deltas):
            self._write(data)

    def _write(self, data: Rendered) -> None:
        """Sends events. The generation is paused while large ones are sent piece by piece."""
        self._sent_at = self._clock()
        if isinstance(data, bytes) and self._sent is None:
            self._sink.push(data)
            return
        self._left.extend([data] if isinstance(data, bytes) else data)
        if self._sent is None:
            self._sent = asyncio.get_running_loop().create_future()
            self._sending = asyncio.ensure_future(self._send_left(self._sent))

    async def _send_left(self, sent: asyncio.Future[None]) -> None:
        try:
            while self._left:
                await self._sink.send(self._left.popleft())
                await asyncio.sleep(0)  # others have their turn
        finally:
            self._sent = None
            wake(sent)

    def _paused(self) -> asyncio.Future[None] | None:
        return self._sent or self._sink.paused()

    async def _all_sent(self) -> None:
        if self._sending is not None:
            await asyncio.wait({self._sending})
            if not self._sending.cancelled():
                self._sending.result()

    def _check_silence(self) -> None:
        """Sends a keep-alive if nothing was sent for ping_s seconds, by one timer for the whole stream."""
        left_s = self._sent_at + self.ping_s - self._clock()
        if left_s <= 0:
            if self._paused() is None:
                self._sink.push(self.ping)
            left_s = self.ping_s
        self._timer = asyncio.get_running_loop().call_later(left_s, self._check_silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def aclose(self) -> None:
        self._closed = True
        self._stop_timer()
        if self._sending is not None:
            self._sending.cancel()
        await self.generation.aclose()
