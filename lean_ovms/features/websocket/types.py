"""A WebSocket between a transport and the api: what a handler answers in place of a body, and what it is then given.

    transport --Request(upgrade="websocket")--> api --Upgrade--> transport --WebSocket--> Upgrade.serve

The handler of the request decides, with all headers, whether there is a WebSocket: an Upgrade opens it, any other
response refuses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...types import Switch
from .handshake import PROTOCOL, accept_key

NORMAL = 1000
GOING_AWAY = 1001
INVALID_DATA = 1007
POLICY_VIOLATION = 1008
TOO_BIG = 1009
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013
"""Close codes (RFC 6455 7.4.1)."""

MAX_REASON_BYTES = 123
"""The most bytes of a close frame's reason, as UTF-8."""


@dataclass(frozen=True, slots=True)
class Close:
    """Tells the client that the server closes the WebSocket, with a code and a reason of at most MAX_REASON_BYTES."""

    code: int = NORMAL
    reason: str = ""


class WebSocketMessage(NamedTuple):
    """A whole message of a client."""

    data: bytes
    """The bytes; those of a text are UTF-8, which is valid."""
    is_text: bool = True
    """Whether it is a text."""


class WebSocket(Protocol):
    """An open WebSocket, as its handler sees it. When the client closes it or leaves, the handler is cancelled."""

    async def receive(self) -> WebSocketMessage:
        """Returns the next message. While nobody receives, little is read ahead."""

    async def send(self, *text: bytes) -> None:
        """Sends a text message, given as UTF-8, a large one in pieces; waits while the client does not read."""


Serve = Callable[[WebSocket], Awaitable[Close]]
"""Serves one WebSocket from its opening to the close that it returns."""


class Upgrade(Switch):
    """The response that opens a WebSocket."""

    __slots__ = ("_serve", "max_message_bytes", "subprotocol")

    def __init__(self, serve: Serve, *, subprotocol: str = "", max_message_bytes: int = 1 << 20) -> None:
        """Makes the response.

        Args:
            serve: Is called once the WebSocket is open.
            subprotocol: One of those that the client offered; empty: none.
            max_message_bytes: Larger messages close the connection with TOO_BIG.
        """
        super().__init__(PROTOCOL)
        self._serve = serve
        self.subprotocol = subprotocol
        self.max_message_bytes = max_message_bytes

    async def serve(self, websocket: WebSocket) -> Close:
        """Serves the WebSocket, which is open, to the close that is returned. Called in a task of its own."""
        for opened in self.on_open:
            opened()
        return await self._serve(_ObservedWebSocket(websocket, self.on_send))

    def head_lines(self, headers: Mapping[str, str]) -> str:
        offered = f"Sec-WebSocket-Protocol: {self.subprotocol}\r\n" if self.subprotocol else ""
        return f"Sec-WebSocket-Accept: {accept_key(headers['sec-websocket-key'])}\r\n{offered}"


class _ObservedWebSocket:
    """A WebSocket that tells how much is sent."""

    def __init__(self, websocket: WebSocket, on_send: Iterable[Callable[[int], None]]) -> None:
        self.receive = websocket.receive
        self._send = websocket.send
        self._on_send = on_send

    async def send(self, *text: bytes) -> None:
        for tell in self._on_send:
            tell(sum(map(len, text)))
        await self._send(*text)
