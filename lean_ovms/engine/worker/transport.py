"""The child's end of the pipe to the front end: whole records in and out, over a blocking socket.

Waiting is one poll without a time limit, which costs no CPU; between two steps a poll of 0.4 us tells whether
anything came.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Protocol

from ..protocol import Decoder, Record, encode

RECEIVE_BYTES = 1 << 18


class Link(Protocol):
    """What the worker needs of it; tests have one without a socket."""

    def take(self, wait: bool) -> list[Record] | None:
        """Every record that has arrived; if `wait`, at least one unless woken. None: the other end is gone."""
        ...

    def send(self, records: list[Record]) -> None:
        """One frame. Raises OSError if the other end is gone."""
        ...

    def wake(self) -> None:
        """End a waiting `take`, this one or the next. Any thread may call it."""
        ...


class SocketLink:
    """A Link on a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._decoder = Decoder()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        self._poll.register(self._bell, select.POLLIN)

    def take(self, wait: bool) -> list[Record] | None:
        records: list[Record] = []
        while ready := self._poll.poll(None if wait and not records else 0):
            for number, _ in ready:
                if number == self._bell:
                    os.read(self._bell, RECEIVE_BYTES)
                    wait = False
                    continue
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    return None
                records += self._decoder.feed(data)
        return records

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of wake-ups already
            os.write(self._ring, b"!")

    def send(self, records: list[Record]) -> None:
        self._socket.sendall(encode(records))
