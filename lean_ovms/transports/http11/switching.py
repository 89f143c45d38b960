"""Declares what HTTP/1.1 asks of another protocol, to which its connections may be switched (RFC 9110, 7.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ...types import Request, Switch
from .writer import ResponseWriter


class Link(Protocol):
    """The part of a connection that the other protocol uses."""

    def set_reading(self, wanted: bool) -> None:
        """Pauses or resumes reading."""

    def reserve_memory(self, size: int) -> bool:
        """Reports the bytes of what is unfinished; returns whether all connections exceed the limit."""


class SwitchedConnection(Protocol):
    """The other protocol's side of a connection."""

    def feed(self, data: bytes) -> None:
        """Takes bytes from the client."""

    def resume(self) -> None:
        """Notes that the client reads again."""

    async def serve(self) -> None:
        """Serves the connection until it should be closed."""


MakeConnection = Callable[[Switch, asyncio.AbstractEventLoop, ResponseWriter, Link, float], SwitchedConnection]
"""Makes that side for the response which switches the connection, the event loop, what sends its bytes, the connection
itself, and the seconds that a large message may take to arrive."""


class OtherProtocol(Protocol):
    """A protocol to which connections are switched."""

    @property
    def name(self) -> str:
        """The name that the protocol has in the header Upgrade, in small letters."""

    def accept(self, request: Request) -> None:
        """Sets `upgrade` of a request that asks for the protocol, if it has all that the protocol wants."""

    async def make_connection(self) -> MakeConnection:
        """Returns what makes its connections. Raises MissingExtra."""
