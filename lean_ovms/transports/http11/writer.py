"""The sending side of a connection: writing, flow control, and detecting a peer that does not read.

uvloop's and asyncio's transports send at once while nothing is buffered, so os.write and socket.send are not faster
(November 2026, 64 connections, CPU us per chunk: 4.2, 4.1, 4.3; with a pause between the steps 8.3, 8.3, 8.7). Nothing
is held back until the next iteration of the loop, since that would delay a token to save a packet.
"""

from __future__ import annotations

import asyncio


class ResponseWriter:
    """Writes to an asyncio transport. The protocol must pass on pause_writing and resume_writing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self.paused: asyncio.Future[None] | None = None
        """A future that is done when the transport accepts more data; None if it accepts more now."""
        self._loop = loop
        self._transport = transport
        self._written = 0
        self._sent = 0  # of the written bytes, at the last call of progressed()
        self._closed = False

    def write(self, data: bytes) -> None:
        """Sends data, unless the connection is lost."""
        if data and not self._closed:
            self._written += len(data)
            self._transport.write(data)

    async def drain(self) -> None:
        """Waits while the transport's buffer is full. Others may wait for the same future, so it is never cancelled."""
        if self.paused is not None:
            await asyncio.shield(self.paused)

    def pause(self) -> None:
        """Notes that the transport's buffer is full."""
        self.paused = self._loop.create_future()
        self.progressed()

    def resume(self) -> None:
        """Notes that the transport has sent most of its buffer."""
        if self.paused is not None and not self.paused.done():
            self.paused.set_result(None)
        self.paused = None

    def close(self) -> None:
        """Notes that the connection is lost, so that nothing more can be sent, and `drain` returns."""
        self._closed = True
        self.resume()

    def progressed(self) -> bool:
        """Returns whether the peer has read anything since the last call."""
        before, self._sent = self._sent, self._written - self._transport.get_write_buffer_size()
        return self._sent > before
