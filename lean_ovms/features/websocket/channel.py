"""The handler's side of a WebSocket: a bounded queue of messages, and the handler's task. Independent of frames.

All transports keep this contract: the handler runs in a separate task; the task is cancelled when the client closes or
leaves, and when the server stops; the way in which the handler ends decides how the WebSocket is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from .types import GOING_AWAY, INTERNAL_ERROR, Close, Serve, WebSocketMessage

MAX_QUEUED_MESSAGES = 64
MAX_QUEUED_BYTES = 1 << 20
"""The limit of messages that the handler has not received yet. Beyond it the transport stops reading."""

STOPPED = Close(GOING_AWAY, "the server is shutting down")

log = logging.getLogger("lean_ovms.transports")


class Channel:
    """The base class of a transport's WebSocket; a subclass implements `send` and `resume_reading`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        """A future that is done when the client has closed or left."""
        self._loop = loop
        self._messages: deque[WebSocketMessage] = deque()
        self._bytes = 0
        self._arrival: asyncio.Future[None] | None = None

    # --- the handler's calls

    async def receive(self) -> WebSocketMessage:
        """Waits for the next message, and returns it."""
        while not self._messages:
            self._arrival = self._loop.create_future()
            self.resume_reading()
            await self._arrival
        message = self._messages.popleft()
        self._bytes -= len(message.data)
        self.resume_reading()
        return message

    async def send(self, *text: bytes) -> None:
        """Sends a text message, given as pieces of UTF-8."""
        raise NotImplementedError

    # --- the transport's calls

    def put(self, message: WebSocketMessage) -> None:
        """Queues a message from the client."""
        self._messages.append(message)
        self._bytes += len(message.data)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    @property
    def full(self) -> bool:
        """Whether the queue is full: the transport must stop reading until the handler has received a message."""
        return len(self._messages) >= MAX_QUEUED_MESSAGES or self._bytes >= MAX_QUEUED_BYTES

    @property
    def awaited(self) -> bool:
        """Whether the handler is waiting for a message."""
        return self._arrival is not None and not self._arrival.done()

    def resume_reading(self) -> None:
        """Notes that the handler has received a message, so that there is room for another, or waits for one."""

    def end(self) -> None:
        """Notes that the client has closed the WebSocket or left."""
        if not self.ended.done():
            self.ended.set_result(None)

    async def run(self, serve: Serve) -> Close:
        """Runs the handler until it returns, the client is gone or the server stops. Returns how to close."""
        task = asyncio.ensure_future(serve(self))
        try:
            waited: set[asyncio.Future[Any]] = {task, self.ended}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            self._messages.clear()
            self._bytes = 0
        if task.cancelled():
            return STOPPED
        if (error := task.exception()) is not None:
            log.error("the handler of a WebSocket failed", exc_info=error)
            return Close(INTERNAL_ERROR, "internal error")
        return task.result()
