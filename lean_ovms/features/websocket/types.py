"""The interface between a transport and the API for WebSockets: a handler's response, and the object that it then uses.

    transport --Request(upgrade="websocket")--> api --Upgrade--> transport --WebSocket--> Upgrade.serve

The handler of the request, which knows all headers, decides whether there is a WebSocket: an Upgrade opens it, any
other response refuses it.
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
"""Close codes of RFC 6455, section 7.4.1."""

MAX_REASON_BYTES = 123
"""The most bytes of the reason in a close frame, as UTF-8."""


@dataclass(frozen=True, slots=True)
class Close:
    """The way in which the server closes a WebSocket."""

    code: int = NORMAL
    """The close code, one of those above or one of the application's own."""
    reason: str = ""
    """The reason for the client, of which at most MAX_REASON_BYTES are sent."""


class WebSocketMessage(NamedTuple):
    """A complete message of a client."""

    data: bytes
    """The bytes of the message; those of a text are valid UTF-8."""
    is_text: bool = True
    """Whether the message is a text."""


class WebSocket(Protocol):
    """An open WebSocket as its handler uses it, which is cancelled when the client closes it or leaves."""

    async def receive(self) -> WebSocketMessage:
        """Waits for the next message, and returns it. Little is read ahead while the handler does not receive."""

    async def send(self, *text: bytes) -> None:
        """Sends a text message as UTF-8, a large one in pieces; waits while the client does not read."""


Serve = Callable[[WebSocket], Awaitable[Close]]
"""A function that serves one WebSocket, and returns how to close it."""


class Upgrade(Switch):
    """The response that opens a WebSocket."""

    __slots__ = ("_serve", "max_message_bytes", "subprotocol")

    def __init__(self, serve: Serve, *, subprotocol: str = "", max_message_bytes: int = 1 << 20) -> None:
        """Creates the response.

        Args:
            serve: Serves the WebSocket once it is open.
            subprotocol: One of the subprotocols that the client offered; empty for none.
            max_message_bytes: The most bytes of a message. A larger one closes the connection with TOO_BIG.
        """
        super().__init__(PROTOCOL)
        self._serve = serve
        self.subprotocol = subprotocol
        self.max_message_bytes = max_message_bytes

    async def serve(self, websocket: WebSocket) -> Close:
        """Serves the open WebSocket in the current task, and returns how to close it."""
        for opened in self.on_open:
            opened()
        return await self._serve(_ObservedWebSocket(websocket, self.on_send))

    def head_lines(self, headers: Mapping[str, str]) -> str:
        offered = f"Sec-WebSocket-Protocol: {self.subprotocol}\r\n" if self.subprotocol else ""
        return f"Sec-WebSocket-Accept: {accept_key(headers['sec-websocket-key'])}\r\n{offered}"


class _ObservedWebSocket:
    """A WebSocket that reports how many bytes are sent."""

    def __init__(self, websocket: WebSocket, on_send: Iterable[Callable[[int], None]]) -> None:
        self.receive = websocket.receive
        self._send = websocket.send
        self._on_send = on_send

    async def send(self, *text: bytes) -> None:
        for tell in self._on_send:
            tell(sum(map(len, text)))
        await self._send(*text)
