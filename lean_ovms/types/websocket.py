"""A WebSocket between a transport and the api: what a handler answers in place of a body, and what it is then given.

    transport --Request(websocket=True)--> api --Upgrade--> transport --WebSocket--> Upgrade.serve

The handler of the request decides, with all headers, whether there is a WebSocket: an Upgrade opens it, any other
response refuses it. Has no behaviour beyond trivial properties.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from . import SWITCHING_PROTOCOLS, Response

PROTOCOLS_HEADER = "sec-websocket-protocol"
"""The request's header with the subprotocols that the client offers, separated by commas."""

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


class Upgrade(Response):
    """The response that opens a WebSocket.

    Its status is 101, or that of the error which a transport sends instead because it cannot open WebSockets.
    """

    __slots__ = ("max_message_bytes", "on_close", "serve", "subprotocol")

    def __init__(self, serve: Serve, *, subprotocol: str = "", max_message_bytes: int = 1 << 20) -> None:
        """Makes the response.

        Args:
            serve: Is called once the WebSocket is open.
            subprotocol: One of those that the client offered; empty: none.
            max_message_bytes: Larger messages close the connection with TOO_BIG.
        """
        super().__init__(SWITCHING_PROTOCOLS)
        self.serve = serve
        self.subprotocol = subprotocol
        self.max_message_bytes = max_message_bytes
        self.on_close: list[Callable[[], None]] = []
        """Are called when the transport closes the response."""

    async def aclose(self) -> None:
        while self.on_close:
            self.on_close.pop()()
