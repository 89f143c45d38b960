"""Log handlers that never block and never raise: one for a stream such as stderr, one for a file.

Both write a record as one line of UTF-8. A line that cannot be written is dropped, and the number of dropped lines is
logged once writing works again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

MAX_BUFFERED_BYTES = 1 << 20
"""Lines of a stream that wait for its reader. Lines beyond it are dropped and counted."""
RETRY_S = 0.05
"""Pause between two attempts to write where poll reported space and there was none."""
FLUSH_S = 0.5
"""How long the end of the process waits for the reader of a stream."""
REPEAT_S = 60.0
"""How often the error of a file that still cannot be written is logged again."""


class LineHandler(logging.Handler):
    """Base: formats a record as a line and passes it to `write`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.line(record)
        except Exception:  # a message that does not match its arguments: as every handler of logging does
            self.handleError(record)
            return
        self.write(line, record.created)

    def line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode("utf-8", "backslashreplace")

    def write(self, line: bytes, created: float) -> None:
        """Write a line; raises nothing. created: when it was logged, in Unix time."""
        raise NotImplementedError


def log_record(level: int, message: str, *args: object) -> logging.LogRecord:
    """Returns a record of the logging module about itself."""
    name = "lean_ovms.observability.logging"
    fields = {"name": name, "levelno": level, "levelname": logging.getLevelName(level), "msg": message, "args": args}
    return logging.makeLogRecord(fields)


class NonBlockingHandler(LineHandler):
    """Lines to a file descriptor, in order, without waiting for its reader.

    A pipe holds 64 KiB, some 300 access lines; a terminal stops at Ctrl-S, the log of a container or service at a full
    disk. A blocking write would then stop the event loop. So a line is written at once where that is possible; else it
    is buffered for a thread that exists only as long as it is needed.

    poll(2) promises space for PIPE_BUF bytes, so no more than that is written at once. The descriptor itself stays
    blocking: O_NONBLOCK would hold for every process that shares it, among them the parent's shell. For a terminal poll
    promises space for one character; there a descriptor of our own is opened, which does not block.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._own_fd = _reopen_terminal(fd) if os.isatty(fd) else -1
        self._fd = fd if self._own_fd < 0 else self._own_fd
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        self._buffer = bytearray()
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()  # of the three above; flush is called with the handler's own lock held

    def write(self, line: bytes, created: float) -> None:
        """Write the line, or buffer what cannot be written now."""
        with self._mutex:
            rest = line if self._thread is not None else self._write_available(line)
            if rest and len(self._buffer) + len(rest) > MAX_BUFFERED_BYTES:
                self._dropped += 1
            elif rest:
                self._buffer += rest
                self._start_thread()

    def flush(self) -> None:
        """Wait up to FLUSH_S until the buffer is written."""
        thread = self._thread
        if thread is not None:
            thread.join(FLUSH_S)

    def close(self) -> None:
        """Close a descriptor of our own, unless the thread still writes to it."""
        if self._own_fd >= 0 and self._thread is None:
            os.close(self._own_fd)
            self._own_fd = self._fd = -1
        super().close()

    def _write_available(self, data: bytes, timeout_ms: int | None = 0) -> bytes:
        """Write while there is space within timeout_ms (None: wait for ever); returns the rest."""
        try:
            while data and self._poll.poll(timeout_ms):
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]
        except BlockingIOError:  # another process took the space, or a terminal has too little for a line's end
            if timeout_ms is None:
                time.sleep(RETRY_S)
            return data
        except OSError:
            return b""  # the reader is gone for good, or the disk is full: there is no place to report it
        return data

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_buffer, name="log", daemon=True)
            self._thread.start()

    def _write_buffer(self) -> None:
        """Runs in the thread: writes until the buffer is empty."""
        while data := self._take_buffer():
            while data:
                data = self._write_available(data, None)

    def _take_buffer(self) -> bytes:
        """Returns the buffer, emptied, and a line on what was dropped after it; b"" ends the thread."""
        with self._mutex:
            data, dropped = bytes(self._buffer), self._dropped
            self._buffer.clear()
            self._dropped = 0
            if not data and not dropped:
                self._thread = None
        if not dropped:
            return data
        return data + self.line(log_record(logging.WARNING, "%d log lines dropped: the reader was too slow", dropped))


def _reopen_terminal(fd: int) -> int:
    """Returns a non-blocking descriptor of the same terminal, shared with no other process; -1 if that is
    impossible."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return -1


class ReopeningFileHandler(LineHandler):
    """Lines to a file that may be moved away (logrotate), deleted, or on a full disk.

    Each line is one write to a descriptor opened with O_APPEND: several processes may share the file, and a line is
    either written or dropped; no half-written line waits in a buffer for a disk that has space again.
    report: gets a record when the first line is dropped, and when writing works again.
    """

    def __init__(self, path: str, report: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._path = Path(path).absolute()
        self._report = report
        self._fd = -1
        self._inode: tuple[int, int] | None = None  # device and inode of the open file
        self._dropped = 0
        self._reported_at = float("-inf")

    def open(self) -> None:
        """Open the file unless it is open and still what the path names. Raises OSError."""
        try:
            status = self._path.stat()
            inode = status.st_dev, status.st_ino
        except FileNotFoundError:
            inode = None
        if self._fd < 0 or inode != self._inode:
            self._close_file()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            status = os.fstat(self._fd)
            self._inode = status.st_dev, status.st_ino

    def write(self, line: bytes, created: float) -> None:
        """Write the line; a failure is reported, but not for each line."""
        try:
            self.open()
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            self._drop(created, error)
        else:
            if self._dropped:
                text = "%s is written again: %d lines are not in it"
                self._report(log_record(logging.INFO, text, self._path, self._dropped))
                self._dropped, self._reported_at = 0, float("-inf")

    def close(self) -> None:
        self._close_file()
        super().close()

    def _drop(self, now: float, error: OSError) -> None:
        self._dropped += 1
        if abs(now - self._reported_at) >= REPEAT_S:  # the clock may be set back
            self._reported_at = now
            text = "--log_path %s: %s: lines are missing there"
            self._report(log_record(logging.ERROR, text, self._path, error.strerror))

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._inode = -1, None
