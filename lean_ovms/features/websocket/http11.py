"""The WebSocket protocol, to which HTTP/1.1 connections can be switched."""

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
"""The module with the connections, which needs the package `websockets`."""


class WebSocketProtocol:
    """The WebSocket protocol. The module with its connections is imported when the first connection is switched."""

    name = PROTOCOL
    """The name of the protocol in the Upgrade header."""

    def accept(self, request: Request) -> None:
        """Marks a request as one that may open a WebSocket, if its handshake is complete."""
        if is_complete(request):
            mark(request)

    async def make_connection(self) -> MakeConnection:
        """Returns the class of its connections. Raises MissingExtra."""
        try:
            if CONNECTION not in sys.modules:
                await asyncio.to_thread(importlib.import_module, CONNECTION)  # the import takes 0.08 s
            from .connection import Http11WebSocket
        except ImportError:
            raise MissingExtra("WebSockets need websockets", "realtime") from None
        return Http11WebSocket


WEBSOCKET: OtherProtocol = WebSocketProtocol()
