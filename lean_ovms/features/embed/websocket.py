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

    async def send(self, message: str | bytes) -> None:
        """Sends a message, after a wait if the server has many unread ones. Raises Closed."""
        while self._channel.full and self._channel.close is None:
            await self._channel.room()
        if self._channel.close is not None:
            raise Closed(self._channel.close)
        self._channel.put(
            WebSocketMessage(message.encode()) if isinstance(message, str) else WebSocketMessage(message, is_text=False)
        )

    async def receive(self) -> str:
        """Returns the next message. Raises Closed after the last one."""
        if self._channel.close is not None and self._channel.outgoing.empty():
            raise Closed(self._channel.close)
        message = await self._channel.outgoing.get()
        if isinstance(message, Close):
            raise Closed(message)
        self._channel.unread.release()
        return message.decode()


class _LocalChannel(Channel):
    """The server's side of a WebSocket without sockets."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.outgoing: asyncio.Queue[bytes | Close] = asyncio.Queue()
        """The messages that the client has not received, of which the last one says how the server has closed."""
        self.unread = asyncio.Semaphore(MAX_UNREAD)
        """Limits the messages in `outgoing`; the client releases one for each that it receives."""
        self.close: Close | None = None
        """How the server has closed the WebSocket; None while it is open."""
        self._room = asyncio.Event()

    async def send(self, *text: bytes) -> None:
        await self.unread.acquire()
        self.outgoing.put_nowait(b"".join(text))

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
            self.close = close
            self.outgoing.put_nowait(close)  # without a wait, since the client may never receive it
            self._room.set()
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
