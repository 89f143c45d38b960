"""The child's end of the pipe to the front end: whole records in and out, over a blocking socket.

Waiting is one blocking recv, which costs no CPU; between two steps one poll of 0.4 us tells whether anything came.
"""

from __future__ import annotations

import select
import socket
from typing import Protocol

from .messages import Decoder, Record, encode

RECEIVE_BYTES = 1 << 18


class Link(Protocol):
    """What the worker needs of it; tests have one without a socket."""

    def take(self, wait: bool) -> list[Record] | None:
        """Every record that has arrived, at least one if `wait`. None: the other end is gone."""
        ...

    def send(self, records: list[Record]) -> None:
        """One frame. Raises OSError if the other end is gone."""
        ...


class SocketLink:
    """A Link on a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._decoder = Decoder()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def take(self, wait: bool) -> list[Record] | None:
        records: list[Record] = []
        while (wait and not records) or self._poll.poll(0):
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                return None
            records += self._decoder.feed(data)
        return records

    def send(self, records: list[Record]) -> None:
        self._socket.sendall(encode(records))
