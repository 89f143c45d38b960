"""Logging with one logger per package under "lean_ovms", and one line per event as text or JSON.

Values from clients are printed through `safe` (text) or as JSON strings (--log_format json), so a header or a model
name cannot forge a line. The access line costs 10 us in either format.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from .records import RequestRecord


TRACE = 5
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PLAIN = "%(message)s"
"""The format of lines for a person who waits for the end of a command."""
PRINTED = "[%(levelname)s] %(name)s: %(message)s"
"""The format of log lines in an engine process whose stderr the front end reads; engine/client/child.py parses it."""


def setup(level: str, form: str = "text", path: str = "", fd: int | None = None, *, text: str = "") -> None:
    """Sends the log of this package to stderr. The loggers of other libraries are not changed.

    Args:
        level: The least level that is logged.
        form: The form of the lines, "text" or "json".
        path: A file that also receives the lines; "" for none. It may be moved away at any time (logrotate).
        fd: The file descriptor that receives the lines instead of stderr.
        text: The format of lines to stderr in text; "" for TEXT.

    Raises:
        OSError: The file cannot be written now. Logging is set up nevertheless, and the file receives lines once it can
            be written.
    """
    logging.addLevelName(TRACE, "TRACE")
    stderr = _to_stderr() if fd is None else NonBlockingHandler(fd)
    root = logging.getLogger("lean_ovms")
    for old in root.handlers:
        old.close()
    root.handlers[:] = [stderr]
    root.setLevel(level)
    root.propagate = False
    formatter = JsonLines() if form == "json" else logging.Formatter(TEXT)
    stderr.setFormatter(logging.Formatter(text) if text else formatter)
    if path:
        _add_file(root, path, formatter)


def is_set_up() -> bool:
    """Returns whether `setup` was called; if not, the program that embeds the server decides where to log."""
    return any(isinstance(handler, NonBlockingHandler) for handler in logging.getLogger("lean_ovms").handlers)


def _add_file(root: logging.Logger, path: str, formatter: logging.Formatter) -> None:
    """Adds a handler that writes to a file. Raises OSError after adding it, if the file cannot be written now."""
    file: logging.Handler
    if Path(path).is_fifo():  # such as /dev/stdout: may be slow; without a reader os.open raises
        file = NonBlockingHandler(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    else:
        file = ReopeningFileHandler(path, root.handlers[0].handle)
    file.setFormatter(formatter)
    root.addHandler(file)
    if isinstance(file, ReopeningFileHandler):
        file.open()


def _to_stderr() -> logging.Handler:
    try:
        return NonBlockingHandler(sys.stderr.fileno())
    except (AttributeError, OSError):  # an embedding program has replaced or removed sys.stderr
        return logging.StreamHandler()


def safe(text: str, limit: int = 200) -> str:
    """Returns a text as one line of printable characters, cut at `limit` characters."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


MAX_NAMES = 20
"""The most names that a message lists."""


def abbreviate(names: Sequence[str]) -> str:
    """Returns names joined for a message, at most the first MAX_NAMES."""
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join([*map(safe, names[:MAX_NAMES]), *more])


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time (RFC 3339, UTC), level, logger, and the message or its fields."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        shown: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        if isinstance(record.msg, Access):
            shown |= record.msg.fields()
        else:
            shown["message"] = _encodable(record.getMessage())
        if record.exc_info:
            shown["exception"] = _encodable(self.formatException(record.exc_info))
        return orjson.dumps(shown, default=str).decode()


class Access:
    """The access line of a request and its response, a log record's message that is formatted when written."""

    __slots__ = ("_record",)

    def __init__(self, record: RequestRecord) -> None:
        self._record = record

    def log(self, logger: logging.Logger, level: int = logging.INFO) -> None:
        """Logs the access line like logger.log, but without looking up the line of code that logs."""
        if logger.isEnabledFor(level):
            logger.handle(logger.makeRecord(logger.name, level, __file__, 0, self, (), None))

    def fields(self) -> dict[str, Any]:
        record = self._record
        shown: dict[str, Any] = {
            "request_id": _encodable(record.request_id),
            "peer": record.peer,
            "method": _encodable(record.method),
            "path": _encodable(record.path[:MAX_PATH]),
            "status": record.status,
            "bytes": record.bytes,
            "ms": round(record.seconds * 1e3, 2),
        }
        if record.model:
            shown |= {"model": record.model, "stream": record.stream}
        if record.key is not None and record.key.name:
            shown["api_key_name"] = record.key.name
        if record.trace_id:
            shown["trace_id"] = record.trace_id
        if record.error:
            shown["error"] = record.error
        if record.generations:
            shown |= self._generated()
        return shown

    def _generated(self) -> dict[str, Any]:
        record = self._record
        ttft_s = record.ttft_s
        return {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.completion_tokens,
            "ttft_ms": None if ttft_s is None else round(ttft_s * 1e3, 2),
            "finish": record.finish_reasons,
            "engine_ids": [g.engine_id for g in record.generations],
        }

    def __str__(self) -> str:
        record = self._record
        kind = f" {record.model}{' stream' if record.stream else ''}" if record.model else ""
        tail = self._generated_text() if record.generations else ""
        key = f" key={record.key.name}" if record.key is not None and record.key.name else ""
        error = f" error={record.error}" if record.error else ""
        trace = f" trace={record.trace_id}" if record.trace_id else ""
        return (
            f"{record.peer or '-'} {safe(record.method)} {safe(record.path)} {record.status} {record.bytes} B "
            f"{record.seconds * 1e3:.1f} ms{kind}{tail}{key}{error}{trace} id={safe(record.request_id)}"
        )

    def _generated_text(self) -> str:
        shown = self._generated()
        ttft = "-" if shown["ttft_ms"] is None else f"{shown['ttft_ms']:.1f} ms"
        return (
            f" prompt={shown['prompt_tokens']} completion={shown['completion_tokens']} ttft={ttft}"
            f" finish={','.join(shown['finish'])} engine={','.join(map(str, shown['engine_ids']))}"
        )


MAX_PATH = 2000


def _encodable(text: str) -> str:
    """Returns a text without unpaired surrogates, which JSON may not contain, but the name of a file may."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


MAX_BUFFERED_BYTES = 1 << 20
"""The most bytes of lines that wait for the reader of a stream. Further lines are dropped and counted."""
RETRY_S = 0.05
"""Seconds between two attempts to write if poll reported space although there was none."""
FLUSH_S = 0.5
"""Seconds for which the end of the process waits for the reader of a stream."""
REPEAT_S = 60.0
"""Seconds after which the error of a file that still cannot be written is logged again."""


class LineHandler(logging.Handler):
    """The base class of handlers that format a record as a line and pass it to `write`."""

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
        """Writes a line, and raises nothing.

        Args:
            line: The line.
            created: The Unix time at which it was logged.
        """
        raise NotImplementedError


def log_record(level: int, message: str, *args: object) -> logging.LogRecord:
    """Creates a log record of this module, about logging itself."""
    name = "lean_ovms.observability.logging"
    fields = {"name": name, "levelno": level, "levelname": logging.getLevelName(level), "msg": message, "args": args}
    return logging.makeLogRecord(fields)


class NonBlockingHandler(LineHandler):
    """Writes lines to a file descriptor in order, without waiting for its reader.

    A pipe holds 64 KiB, some 300 access lines; a terminal stops at Ctrl-S; the log of a container or service may stop
    at a full disk. A blocking write would then stop the event loop. So a line is written at once if possible, and
    otherwise buffered for a thread that exists only as long as it is needed.

    poll(2) guarantees space for PIPE_BUF bytes, so no more than that is written at once. The descriptor itself stays
    blocking, since O_NONBLOCK would affect every process that shares it, such as the parent's shell. For a terminal,
    poll guarantees space for one character only; so a separate non-blocking descriptor is opened for it.
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
        """Writes the line, or buffers what cannot be written now."""
        with self._mutex:
            rest = line if self._thread is not None else self._write_available(line)
            if rest and len(self._buffer) + len(rest) > MAX_BUFFERED_BYTES:
                self._dropped += 1
            elif rest:
                self._buffer += rest
                self._start_thread()

    def flush(self) -> None:
        """Waits up to FLUSH_S seconds until the buffer is written."""
        thread = self._thread
        if thread is not None:
            thread.join(FLUSH_S)

    def close(self) -> None:
        """Closes the descriptor if this handler opened it, unless the thread is still writing to it."""
        if self._own_fd >= 0 and self._thread is None:
            os.close(self._own_fd)
            self._own_fd = self._fd = -1
        super().close()

    def _write_available(self, data: bytes, timeout_ms: int | None = 0) -> bytes:
        """Writes while there is space within timeout_ms (None to wait forever), and returns the rest."""
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
        """Writes until the buffer is empty; runs in the thread."""
        while data := self._take_buffer():
            while data:
                data = self._write_available(data, None)

    def _take_buffer(self) -> bytes:
        """Takes the buffer's content, with a line about dropped ones if there are any; b"" ends the thread."""
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
    """Opens the same terminal as a non-blocking descriptor that no other process shares; -1 if impossible."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return -1


class ReopeningFileHandler(LineHandler):
    """Writes lines to a file that may be moved away (logrotate) or deleted, or whose disk may be full.

    Each line is one write to a descriptor opened with O_APPEND, so several processes may share the file. A line is
    either written or dropped. If only its beginning fits on the disk, the next line still begins on a line of its own.
    """

    def __init__(self, path: str, report: Callable[[logging.LogRecord], object]) -> None:
        """Opens the file.

        Args:
            path: The path of the file.
            report: Called with a record when the first line is dropped, and when writing works again.
        """
        super().__init__()
        self._path = Path(path).absolute()
        self._report = report
        self._fd = -1
        self._inode: tuple[int, int] | None = None  # device and inode of the open file
        self._cut = False  # whether the last line in it has no end
        self._dropped = 0
        self._reported_at = float("-inf")

    def open(self) -> None:
        """Opens the file unless it is already open and the path still refers to it. Raises OSError."""
        try:
            status = self._path.stat()
            inode = status.st_dev, status.st_ino
        except FileNotFoundError:
            inode = None
        if self._fd < 0 or inode != self._inode:
            self._close_file()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            status = os.fstat(self._fd)
            self._inode, self._cut = (status.st_dev, status.st_ino), False

    def write(self, line: bytes, created: float) -> None:
        """Writes the line. Failures are reported, but not for each line."""
        try:
            self.open()
            line = b"\n" * self._cut + line
            while line:
                written = os.write(self._fd, line)
                self._cut = not line[:written].endswith(b"\n")
                line = line[written:]
        except OSError as error:
            self._drop(created, error)
        else:
            if self._dropped:
                text = "%s can be written again; %d lines are missing in it"
                self._report(log_record(logging.INFO, text, self._path, self._dropped))
                self._dropped, self._reported_at = 0, float("-inf")

    def close(self) -> None:
        self._close_file()
        super().close()

    def _drop(self, now: float, error: OSError) -> None:
        self._dropped += 1
        if abs(now - self._reported_at) >= REPEAT_S:  # the clock may be set back
            self._reported_at = now
            text = "cannot write to --log_path %s: %s; log lines are lost"
            self._report(log_record(logging.ERROR, text, self._path, error.strerror))

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._inode = -1, None
