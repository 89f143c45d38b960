"""What goes out to one peer: writing, waiting while it takes nothing, and telling a slow peer from a stalled one.

Writes are joined by uvloop, which sends all that was written in one turn of the loop at the end of that turn; asyncio's
own loop sends at once. Nothing is held back here to the next turn: that would delay a token to save a packet.
"""

from __future__ import annotations

import asyncio


class Writer:
    """The sending side of a transport. The protocol passes on pause_writing and resume_writing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._written = 0
        self._taken = 0  # of it, when we last looked
        self.full: asyncio.Future[None] | None = None  # exists while the transport has too much to send
        self._closed = False

    def write(self, data: bytes) -> None:
        """Send data, unless the connection is lost."""
        if data and not self._closed:
            self._written += len(data)
            self._transport.write(data)

    async def room(self) -> None:
        """Wait while the transport has too much to send."""
        if self.full is not None:
            await self.full

    def pause(self) -> None:
        """The transport has too much to send."""
        self.full = self._loop.create_future()
        self.moved()

    def resume(self) -> None:
        """The transport has sent most of it."""
        if self.full is not None and not self.full.done():
            self.full.set_result(None)
        self.full = None

    def close(self) -> None:
        """The connection is lost: nothing more can be sent, nobody needs to wait."""
        self._closed = True
        self.resume()

    def moved(self) -> bool:
        """Whether the peer took anything since this was last asked."""
        before, self._taken = self._taken, self._written - self._transport.get_write_buffer_size()
        return self._taken > before
