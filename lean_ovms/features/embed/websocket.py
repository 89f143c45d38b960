"""A WebSocket to an app in this process, without sockets, for embedding programs and tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from ...types import Handle, Request, Response
from ..websocket.channel import STOPPED, Channel
from ..websocket.handshake import mark
from ..websocket.types import Close, Upgrade, WebSocketMessage

MAX_UNREAD = 64
"""Messages that the client has not received; then the server waits."""


class WebSocketRefused(Exception):
    """Raised if the request gets another response than a WebSocket."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"the server did not open a WebSocket: {response.status}")
        self.response = response


class Closed(Exception):
    """Raised if the server has closed the WebSocket."""

    def __init__(self, close: Close) -> None:
        super().__init__(f"closed with {close.code}: {close.reason}")
        self.close = close


class LocalWebSocket:
    """The client's side of a WebSocket without sockets."""

    def __init__(self, channel: _LocalChannel) -> None:
        self._channel = channel
        self._close: Close | None = None

    async def send(self, message: str | bytes) -> None:
        """Sends a message, after a wait if the server has many unread ones. Raises Closed."""
        while self._channel.full and not self._channel.over:
            await self._channel.room()
        if self._channel.over and self._close is not None:
            raise Closed(self._close)
        self._channel.put(
            WebSocketMessage(message.encode()) if isinstance(message, str) else WebSocketMessage(message, is_text=False)
        )

    async def receive(self) -> str:
        """Returns the next message. Raises Closed after the last one."""
        if self._close is None:
            message = await self._channel.outgoing.get()
            if isinstance(message, bytes):
                return message.decode()
            self._close = message
        raise Closed(self._close)


class _LocalChannel(Channel):
    """The server's side of a WebSocket without sockets."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.outgoing: asyncio.Queue[bytes | Close] = asyncio.Queue(MAX_UNREAD)
        self.over = False
        """Whether the server has closed."""
        self._room = asyncio.Event()

    async def send(self, *text: bytes) -> None:
        await self.outgoing.put(b"".join(text))

    def resume_reading(self) -> None:
        self._room.set()

    async def room(self) -> None:
        """Waits until the server has taken a message, or has closed the WebSocket."""
        self._room.clear()
        await self._room.wait()

    async def serve(self, upgrade: Upgrade) -> None:
        close = STOPPED
        try:
            close = await self.run(upgrade.serve)
        finally:
            self.over = True
            self._room.set()
            if not self.ended.done():
                await self.outgoing.put(close)
            await upgrade.aclose()


@contextlib.asynccontextmanager
async def connect(handle: Handle, request: Request) -> AsyncIterator[LocalWebSocket]:
    """Opens a WebSocket by a request; leaving the block closes it. Raises WebSocketRefused."""
    request = replace(request)
    mark(request)
    response = await handle(request)
    if not isinstance(response, Upgrade):
        await response.aclose()
        raise WebSocketRefused(response)
    channel = _LocalChannel()
    serving = asyncio.ensure_future(channel.serve(response))
    try:
        yield LocalWebSocket(channel)
    finally:
        channel.end()
        await asyncio.wait({serving})
        serving.result()
