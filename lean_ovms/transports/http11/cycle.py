"""One request and its response over HTTP/1.1. Frames with a ServerProtocol and sends through a Writer.

Does not know asyncio's transports, nor what becomes of the connection afterwards.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Protocol

from ...errors import InternalError, MissingExtra, RequestError
from ...types import Handle, Response
from ...websocket_types import Upgrade
from ..cycle import RequestResponseCycle
from .protocol import ServerProtocol
from .writer import Writer

if TYPE_CHECKING:
    from .websocket import Http11WebSocket


class Switchable(Protocol):
    """A connection that can carry a WebSocket."""

    def open_websocket(self, max_message_bytes: int) -> Http11WebSocket:
        """From now on, what the client sends goes to this WebSocket."""


class Http11Cycle(RequestResponseCycle):
    """started: some of the response is sent."""

    def __init__(self, handle: Handle, protocol: ServerProtocol, writer: Writer, connection: Switchable) -> None:
        super().__init__(handle)
        self.started = False
        self._protocol = protocol
        self._writer = writer
        self._connection = connection

    def error_response(self, error: RequestError) -> Response:
        return self._protocol.error_response(error)

    async def send(self, response: Response) -> None:
        if isinstance(response, Upgrade):
            await self._upgrade(response)
            return
        protocol, writer, body = self._protocol, self._writer, response.body
        pending = protocol.start_response(response)
        if protocol.expects_body and not isinstance(body, bytes):
            # The head is sent together with the first chunk: one packet, and an early failure can still be a 500.
            async for data in body:
                if self.cancelled:
                    return
                if data:
                    self._write(pending + protocol.chunk(data))
                    pending = b""
                    if writer.paused is not None:  # checked first: awaiting a coroutine for nothing costs 0.1 us
                        await writer.drain()
            pending += protocol.end_body()
        self._write(pending)
        await writer.drain()  # before the next request is read: responses that are not read must not pile up

    async def _upgrade(self, response: Upgrade) -> None:
        """Switch the connection to WebSocket, and serve it to its end."""
        try:
            if f"{__package__}.websocket" not in sys.modules:
                await asyncio.to_thread(_import_frames)  # 0.08 s
        except ImportError:
            error = MissingExtra("WebSockets need websockets", "realtime")
            response.status = error.status
            await self.send(self.error_response(error))
            return
        self._write(self._protocol.switch_protocol(response.headers, response.subprotocol))
        websocket = self._connection.open_websocket(response.max_message_bytes)
        await websocket.serve(response.serve)
        self._protocol.end_switched()

    async def send_failure(self) -> None:
        if not self.started and not self.cancelled:
            self._write(self._protocol.start_response(self.error_response(InternalError())))

    def _write(self, data: bytes) -> None:
        self.started = True
        self._writer.write(data)


def _import_frames() -> None:
    from . import websocket  # noqa: F401
