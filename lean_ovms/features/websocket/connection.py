"""A WebSocket on an upgraded HTTP/1.1 connection: frames, flow control, keep-alive, and the closing handshake.

Back-pressure: bytes are parsed only while the handler's queue has room and the client reads what is sent to it
(otherwise a flood of pings would fill the memory with pongs). Unparsed bytes pause reading, so TCP slows the client
down. A large message is read only while the handler waits for one; as with a body, its time is limited, and its memory
is counted together with that of all others.
"""

from __future__ import annotations

import asyncio
from typing import cast

from ...transports.cycle import ResponseWriter
from ...transports.http11.switching import Link
from ...types import Switch
from .channel import STOPPED, Channel
from .frames import Frames
from .types import INTERNAL_ERROR, POLICY_VIOLATION, TRY_AGAIN_LATER, Close, Upgrade

PING_S = 20.0
"""Seconds between two pings."""
MAX_MISSED = 2
"""The number of successive pings without any byte from the client after which the connection is given up."""
CLOSE_S = 5.0
"""Seconds for which the client's close frame is awaited after the server's."""
SLICE = 16384
MAX_FRAMES_PER_TURN = 512
"""The number of bytes parsed at once, and the number of frames after which other connections have their turn: a frame
takes 5 us, however small it is."""
AHEAD_BYTES = 65536
"""The most bytes of an incomplete message that are read while the handler does not wait for one."""

TOO_MANY = Close(TRY_AGAIN_LATER, "too many large messages are being received; please try again later")
TOO_SLOW = Close(POLICY_VIOLATION, "the message did not arrive in time")


class Http11WebSocket(Channel):
    """The WebSocket of one upgraded connection."""

    def __init__(
        self,
        response: Switch,
        loop: asyncio.AbstractEventLoop,
        writer: ResponseWriter,
        link: Link,
        message_timeout_s: float,
    ) -> None:
        """Creates the WebSocket; `serve` runs it.

        Args:
            response: The Upgrade that opens it.
            loop: The connection's event loop.
            writer: Sends the bytes of frames.
            link: The connection.
            message_timeout_s: The seconds within which a large message must arrive.
        """
        super().__init__(loop)
        self._response = cast(Upgrade, response)
        self._message_timeout_s = message_timeout_s
        self._frames = Frames(self._response.max_message_bytes)
        self._writer = writer
        self._link = link
        self._backlog = bytearray()
        self._yielded = False  # whether parsing goes on in another turn of the event loop
        self._received = True  # whether anything was received since the last ping
        self._missed = 0
        self._closing = False  # whether further messages are dropped
        self._timer = loop.call_later(PING_S, self._tick)
        self._deadline: asyncio.TimerHandle | None = None  # the deadline of a large message

    # --- the connection's calls

    def feed(self, data: bytes) -> None:
        """Takes bytes received from the client."""
        self._received = True
        self._backlog += data
        self._parse()

    def resume(self) -> None:
        """Is called when the client reads again."""
        self._parse()

    def resume_reading(self) -> None:
        if self._backlog:
            self._parse()
        else:
            self._watch_message()

    async def serve(self) -> None:
        """Runs the handler, then closes the WebSocket; returns when the connection should be closed."""
        try:
            close = await self.run(self._response.serve)
            await self._close(close)
        except asyncio.CancelledError:
            self._frames.close(STOPPED)
            self._flush()
            raise
        finally:
            self._timer.cancel()
            self._closing = True
            self._backlog.clear()
            self._frames.free()
            self._watch_message()

    async def send(self, *text: bytes) -> None:
        for number, piece in enumerate(text, 1):
            self._frames.text(piece, first=number == 1, last=number == len(text))
            self._flush()
            if self._writer.paused is not None:
                await self._writer.drain()
            if number < len(text):
                await asyncio.sleep(0)  # lets others run

    # ---

    async def _close(self, close: Close) -> None:
        """Sends the close frame, and waits for the client's. Pings and messages before that are read and dropped."""
        self._closing = True
        self._frames.close(close)
        self._flush()
        self._parse()
        if not self.ended.done():
            await asyncio.wait({self.ended}, timeout=CLOSE_S)

    def _parse(self) -> None:
        frames = 0
        while self._backlog and not self._yielded and self._has_room():
            if frames > MAX_FRAMES_PER_TURN:
                self._yielded = True
                self._loop.call_soon(self._continue)
                break
            piece = bytes(self._backlog[:SLICE])
            del self._backlog[:SLICE]
            messages, count = self._frames.feed(piece)
            frames += count
            self._flush()
            if not self._closing:
                for message in messages:
                    self.put(message)
            if self._frames.ended:
                self._backlog.clear()
                self._frames.free()
                self.end()
        self._watch_message()
        self._link.set_reading(not self._backlog)

    def _has_room(self) -> bool:
        if self._writer.paused is not None or self._closing:
            return self._writer.paused is None
        return self.awaited or not (self.full or self._frames.unfinished_bytes > AHEAD_BYTES)

    def _watch_message(self) -> None:
        """Limits the memory of incomplete messages, and the time of a large one while the handler waits for it."""
        size = self._frames.unfinished_bytes
        if self._link.reserve_memory(size):
            self._give_up(TOO_MANY)
        elif size <= AHEAD_BYTES or not self.awaited:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self._loop.call_later(self._message_timeout_s, self._give_up, TOO_SLOW)

    def _give_up(self, close: Close) -> None:
        """Closes the connection without waiting for the client."""
        self._frames.close(close)
        self._flush()
        self._backlog.clear()
        self._frames.free()
        self._link.reserve_memory(0)
        self.end()

    def _continue(self) -> None:
        self._yielded = False
        self._parse()

    def _flush(self) -> None:
        self._writer.write(self._frames.take_outgoing())

    def _tick(self) -> None:
        """Sends a ping, or gives up a client that has vanished; not while the server itself pauses reading."""
        self._timer = self._loop.call_later(PING_S, self._tick)
        self._missed = 0 if self._received or self._backlog else self._missed + 1
        self._received = False
        if self._missed >= MAX_MISSED:
            self._give_up(Close(INTERNAL_ERROR, "no answer to pings"))
            return
        self._frames.ping()
        self._flush()
