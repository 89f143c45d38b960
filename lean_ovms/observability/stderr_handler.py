"""Log lines to a stream that nobody may be reading: they wait, the server does not.

A pipe holds 64 KiB, some 300 access lines; a terminal stops at Ctrl-S, a container's or a service's log at a full disk.
Whoever writes to one of them then stands still until somebody reads, and an event loop that stands still serves nobody.
So a line goes out at once where that is possible, and else waits for a thread that exists only as long as it is needed.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time

from .handlers import LineHandler, own_record

MAX_WAITING = 1 << 20
"""Bytes that wait for a reader. Lines for which there is no room are lost, and counted for whoever reads again."""
AGAIN_S = 0.05
"""Between two attempts to write where poll promises too much."""
FLUSH_S = 0.5
"""Time for a reader to take what waits, when the process ends."""


class NonBlockingHandler(LineHandler):
    """Lines to a file descriptor, in order, without waiting for its reader.

    poll(2) promises room for PIPE_BUF bytes, so no more than that is written at once. The descriptor itself is left
    blocking: O_NONBLOCK would hold for every process that shares it, our parent's shell among them. Of a terminal poll
    promises room for one character; there a descriptor of our own is opened, which does not block.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._own = _opened_anew(fd) if os.isatty(fd) else -1
        self._fd = fd if self._own < 0 else self._own
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        self._waiting = bytearray()
        self._lost = 0
        self._writer: threading.Thread | None = None
        self._mutex = threading.Lock()  # of the three above; the handler's own is held while it is flushed at the end

    def write(self, line: bytes, at: float) -> None:
        """Write it, or put it down to be written."""
        with self._mutex:
            rest = line if self._writer is not None else self._written(line)
            if rest and len(self._waiting) + len(rest) > MAX_WAITING:
                self._lost += 1
            elif rest:
                self._waiting += rest
                self._start_writer()

    def flush(self) -> None:
        """Give the reader a moment to take what waits."""
        writer = self._writer
        if writer is not None:
            writer.join(FLUSH_S)

    def close(self) -> None:
        """Let go of what is ours; a writer that still waits for its reader keeps it."""
        if self._own >= 0 and self._writer is None:
            os.close(self._own)
            self._own = self._fd = -1
        super().close()

    def _written(self, data: bytes, patience_ms: int | None = 0) -> bytes:
        """Write what goes without waiting any longer; the rest. None waits for ever."""
        try:
            while data and self._poll.poll(patience_ms):
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]
        except BlockingIOError:  # somebody else took the room, or a terminal has some, but not for a line's end
            if patience_ms is None:
                time.sleep(AGAIN_S)
            return data
        except OSError:
            return b""  # the reader is gone for good, or the disk is full: nobody is left to be told
        return data

    def _start_writer(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_waiting, name="log", daemon=True)
            self._writer.start()

    def _write_waiting(self) -> None:
        """In a thread: until nothing waits any more."""
        while data := self._next():
            while data:
                data = self._written(data, None)

    def _next(self) -> bytes:
        """What waits, with a line on what was lost after it; without any, the writer has ended."""
        with self._mutex:
            data, lost = bytes(self._waiting), self._lost
            self._waiting.clear()
            self._lost = 0
            if not data and not lost:
                self._writer = None
        if not lost:
            return data
        return data + self.line(own_record(logging.WARNING, "%d lines are lost: nobody read them", lost))


def _opened_anew(fd: int) -> int:
    """Another descriptor of the same terminal, not shared with anybody, which does not block; -1 where that is not
    possible."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return -1
