"""WebSocket as a protocol to which connections of HTTP/1.1 are switched."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING

from ...errors import MissingExtra
from ...types import Request
from .handshake import PROTOCOL, is_complete, mark

if TYPE_CHECKING:
    from ...transports.http11.switching import MakeConnection, OtherProtocol

CONNECTION = f"{__package__}.connection"
"""The module of connections, which needs `websockets`."""


class WebSocketProtocol:
    """The protocol, whose connections are imported when the first one is switched."""

    name = PROTOCOL
    """The name in the header Upgrade."""

    def accept(self, request: Request) -> None:
        """Marks a request as one that may open a WebSocket, if its handshake is complete."""
        if is_complete(request):
            mark(request)

    async def make_connection(self) -> MakeConnection:
        """Returns the class of its connections. Raises MissingExtra."""
        try:
            if CONNECTION not in sys.modules:
                await asyncio.to_thread(importlib.import_module, CONNECTION)  # 0.08 s
            from .connection import Http11WebSocket
        except ImportError:
            raise MissingExtra("WebSockets need websockets", "realtime") from None
        return Http11WebSocket


WEBSOCKET: OtherProtocol = WebSocketProtocol()
