"""The interface of another protocol, to which HTTP/1.1 connections may be switched (RFC 9110, 7.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ...types import Request, Switch
from ..cycle import ResponseWriter


class Link(Protocol):
    """The part of an HTTP connection that the other protocol uses."""

    def set_reading(self, wanted: bool) -> None:
        """Pauses or resumes reading."""

    def reserve_memory(self, size: int) -> bool:
        """Reports the bytes of incomplete data; returns whether the memory of all connections exceeds the limit."""


class SwitchedConnection(Protocol):
    """The object that serves a connection after it was switched to the other protocol."""

    def feed(self, data: bytes) -> None:
        """Takes bytes received from the client."""

    def resume(self) -> None:
        """Is called when the client reads again."""

    async def serve(self) -> None:
        """Serves the connection until it should be closed."""


MakeConnection = Callable[[Switch, asyncio.AbstractEventLoop, ResponseWriter, Link, float], SwitchedConnection]
"""A function that creates a SwitchedConnection from the response that switches the connection, the event loop, the
writer, the connection itself, and the seconds in which a large message must arrive."""


class OtherProtocol(Protocol):
    """A protocol to which connections can be switched."""

    @property
    def name(self) -> str:
        """The name of the protocol in the Upgrade header, in lower case."""

    def accept(self, request: Request) -> None:
        """Sets `upgrade` of a request if it asks for this protocol and has all headers that the protocol requires."""

    async def make_connection(self) -> MakeConnection:
        """Returns the function that creates its connections. Raises MissingExtra."""
