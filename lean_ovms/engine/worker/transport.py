"""The child's end of the pipe to the front end: whole records in and out, over a blocking socket.

Waiting is one poll without a time limit, which costs no CPU; between two steps a poll of 0.4 us finds out whether
anything has arrived.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterable
from typing import Any

from ..protocol import Decoder, Record, attachments, encode

RECEIVE_BYTES = 1 << 18


class Transport:
    """Records over a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._decoder = Decoder()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._poll.register(self._wake_reader, select.POLLIN)

    def receive(self, wait: bool) -> list[Record] | None:
        """Returns what has arrived; with `wait`, at least one unless woken. None: the other end is closed."""
        records: list[Record] = []
        while ready := self._poll.poll(None if wait and not records else 0):
            for number, _ in ready:
                if number == self._wake_reader:
                    os.read(self._wake_reader, RECEIVE_BYTES)
                    wait = False
                    continue
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    return None
                records += self._decoder.feed(data)
        return records

    def know(self, records: Iterable[type[Any]]) -> None:
        """Understands the records of a task, too."""
        self._decoder.know(records)

    def wake(self) -> None:
        """Ends a waiting `receive`, the current one or the next. Thread-safe."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_writer, b"!")

    def send(self, records: list[Record]) -> None:
        """Writes one frame. Raises OSError if the other end is closed."""
        frame = encode(records)
        parts = attachments(records)
        self._socket.sendall(b"".join([*parts, frame]) if parts else frame)
