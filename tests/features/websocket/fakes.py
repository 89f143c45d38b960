"""The server's side of a WebSocket that sends messages back, for tests of every transport."""

from __future__ import annotations

import asyncio

from lean_ovms.features.websocket.types import Close, Upgrade, WebSocket
from lean_ovms.types import Request, Response


class Echo:
    """Sends back what it receives, until it is asked to stop. While `gate` is cleared, it receives nothing."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.received: list[bytes] = []
        self.cancelled = self.closed = self.served = 0
        self.size = 1 << 20
        self.reply: bytes | None = None

    async def handle(self, request: Request) -> Response:
        if not request.upgrade:
            return Response(426, [("Upgrade", "websocket")], b"{}")
        upgrade = Upgrade(self.serve, max_message_bytes=self.size)
        upgrade.on_close.append(self._close)
        return upgrade

    def _close(self) -> None:
        self.closed += 1

    async def serve(self, websocket: WebSocket) -> Close:
        self.served += 1
        try:
            while True:
                await self.gate.wait()
                message = await websocket.receive()
                self.received.append(message.data)
                if message.data == b"bye":
                    return Close(4000, "as you wish")
                if message.data == b"boom":
                    raise ZeroDivisionError
                await websocket.send(message.data if self.reply is None else self.reply)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
