"""The side of helper.py in the helper process, which handles one job after another with limits of memory and time."""

from __future__ import annotations

import io
import json
import math
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterable
from io import BufferedRWPair
from typing import Any, NoReturn

from ...util.child_process import EXIT_USAGE, inherit_socket

Handle = Callable[[dict[str, Any], "JobChannel"], None]
FD_BYTES = 4
"""Bytes of a descriptor in a control message."""


class JobChannel(BufferedRWPair):
    """The socket to the parent process."""

    def __init__(self, sock: socket.socket) -> None:
        self._raw = _RawSocket(sock)
        super().__init__(self._raw, self._raw)

    def take_file(self) -> int:
        """Returns the descriptor that came with the last job, which the caller closes. Raises IndexError."""
        return self._raw.files.pop()


class _RawSocket(io.RawIOBase):
    """A raw stream on a socket that also receives file descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self.files: list[int] = []
        """The descriptors that have come."""
        self._sock = sock

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size, sent, _, _ = self._sock.recvmsg_into([buffer], socket.CMSG_SPACE(FD_BYTES))
        for level, kind, data in sent:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.files.append(int.from_bytes(data[:FD_BYTES], sys.byteorder))
        return size

    def write(self, data: Any) -> int:
        return self._sock.send(data)


def run(module: str, handle: Handle) -> NoReturn:
    """Runs a helper: calls `handle` with each job, a line of JSON, until the parent closes the socket."""
    sock = inherit_socket(module, sys.argv[1:])
    if sock is None:
        os._exit(EXIT_USAGE)
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    try:
        stream = JobChannel(sock)
        for line in stream:
            _set(resource.RLIMIT_AS, math.inf)  # the limit of one file must not hold for the next one
            handle(json.loads(line), stream)
    except BrokenPipeError:  # the request was abandoned
        pass
    os._exit(0)


def write_answer(stream: JobChannel, answer: dict[str, Any], parts: Iterable[bytes] = ()) -> None:
    """Writes the answer to a job: the size of a JSON object in 4 bytes, the object, and the bytes that it describes.

    Args:
        stream: The socket to the parent process.
        answer: The object: {"error": text} if the file cannot be read.
        parts: The bytes after the object.
    """
    head = json.dumps(answer).encode()
    stream.write(len(head).to_bytes(4, "big") + head)
    for part in parts:
        stream.write(part)
    stream.flush()


def set_limits(extra_bytes: int, extra_s: float) -> None:
    """Limits memory and CPU time to the given amounts beyond what the process has used so far."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    _set(resource.RLIMIT_AS, used_bytes + extra_bytes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + extra_s))


def _set(limit: int, value: float) -> None:
    """Sets a soft limit, which cannot be above the hard one of the system."""
    hard = resource.getrlimit(limit)[1]
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (resource.RLIM_INFINITY if math.isinf(most) else int(most), hard))
