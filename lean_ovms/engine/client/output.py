"""Turns the stdout and stderr of an engine process into log records: one per line, or one for a whole traceback.

OpenVINO and GenAI write there, and so does Python when it fails; the process's own log uses another file descriptor.
The pipe is read as fast as it fills, since a full pipe would stop the engine. Records above a limit are only counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from io import FileIO
from typing import NamedTuple

from ...observability.logging import safe

log = logging.getLogger("lean_ovms.engine.output")

QUIET_S = 0.05
"""Seconds after which a record is complete if no other line follows."""
MAX_LINE = 4096
"""The most bytes of a line; the rest of the line is dropped."""
MAX_LINES = 200
"""The most lines of a record; longer output is continued in the next record."""
MAX_RECORDS = 100
"""The most records in WINDOW_S seconds; the lines of further records are only counted."""
WINDOW_S = 1.0
SHOWN_LINES = 5
"""The number of lines of a record that are shown as the last words of a process."""
LAST_S = 10.0
"""The greatest age, in seconds, of a record that is shown as the last words of a process."""
READ_BYTES = 1 << 16
MAX_LAST_READS = 64

LEVELS = {
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
TAG = re.compile(rf"\[\s*({'|'.join(LEVELS)})\s*\]:?\s*", re.IGNORECASE)
"""The beginnings of the lines that GenAI and OpenVINO write."""
FAILURE = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|Exception ignored |Exception in thread"
    r"|--- Logging error ---|(?:Current thread|Thread) 0x|terminate called|LLVM ERROR"
)
"""Matches the first line of a traceback or of the C++ runtime's last words; all further lines belong to it."""
WARNING = re.compile(r"\S+:\d+: \w*Warning: ")


class Output(NamedTuple):
    """A record to log, whose lines after the first are indented so that none looks like one of the server's own."""

    level: int
    text: str
    lines: int


class Grouper:
    """Groups the bytes of the output into records."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._cut = 0  # bytes left out of it
        self._level = logging.INFO
        self._lines: list[str] = []  # of the record that may still be continued
        self._takes_all = False  # whether lines that are not indented continue the record, too

    @property
    def pending(self) -> bool:
        """Whether further lines may continue the current record."""
        return bool(self._lines)

    def feed(self, data: bytes) -> list[Output]:
        """Takes bytes of the output, and returns the records that are complete."""
        found: list[Output] = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._extend(part)
            found += self._end_line()
        self._extend(rest)
        return found

    def flush(self, *, last: bool = False) -> list[Output]:
        """Returns the records that no further line can continue; the last output includes a line without its end."""
        found = self._end_line() if last and self._line else []
        if self._lines:
            found.append(Output(self._level, "\n    ".join(self._lines), len(self._lines)))
            self._lines = []
        return found

    def _extend(self, part: bytes) -> None:
        taken = part[: MAX_LINE - len(self._line)]
        self._line += taken
        self._cut += len(part) - len(taken)

    def _end_line(self) -> list[Output]:
        # What a terminal would show of a progress bar: the text after the last carriage return.
        text = self._line.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
        shown = safe(text, MAX_LINE) + (f"… ({self._cut} bytes left out)" if self._cut else "")
        self._line.clear()
        self._cut = 0
        tag = TAG.match(text)
        indented = text[:1].isspace()
        if self._lines and len(self._lines) < MAX_LINES and (indented or (self._takes_all and not tag)):
            if text:
                self._lines.append(shown)
            return []
        found = self.flush()
        if text:
            self._begin(shown, tag)
        return found

    def _begin(self, text: str, tag: re.Match[str] | None) -> None:
        self._takes_all = FAILURE.match(text) is not None
        if tag is not None:
            self._level = LEVELS[tag[1].upper()]
            text = text[tag.end() :]
        elif self._takes_all:
            self._level = logging.ERROR
        else:
            self._level = logging.WARNING if WARNING.match(text) else logging.INFO
        self._lines = [text]


def _shortened(text: str) -> str:
    """Returns the beginning and the end of a record in one line."""
    lines = [line.strip() for line in text.split("\n")]
    return " ".join(lines if len(lines) <= SHOWN_LINES else [*lines[:2], "…", *lines[2 - SHOWN_LINES :]])


class OutputLog:
    """Reads the output pipe of one process, and logs it."""

    def __init__(self, pipe: FileIO, pid: int) -> None:
        """Begins to read, in a running event loop, the non-blocking pipe of a process, which this object closes."""
        self._pipe = pipe
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._grouper = Grouper()
        self._timer: asyncio.TimerHandle | None = None
        self._window: asyncio.TimerHandle | None = None
        self._logged = 0  # in this window
        self._dropped = 0
        self._last: deque[tuple[float, str]] = deque(maxlen=3)
        self._loop.add_reader(pipe.fileno(), self._on_readable)

    @property
    def last_words(self) -> str:
        """The records of the last seconds in one line, for a message about the end of the process; "" for none."""
        since = time.monotonic() - LAST_S
        return " | ".join(_shortened(text) for at, text in self._last if at >= since)

    def finish(self) -> None:
        """Logs the remaining output of a process that has ended, and closes the pipe. Idempotent."""
        for _ in range(MAX_LAST_READS):  # a process of its own that goes on writing must not delay the end
            if not self._read():
                break
        self._close()

    def _on_readable(self) -> None:
        if self._read() == b"":
            self._close()
        elif self._grouper.pending:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(QUIET_S, self._flush)

    def _read(self) -> bytes | None:
        """Reads and logs the available output, and returns it; None if there is none, b"" if the pipe is closed."""
        if self._pipe.closed:
            return b""
        data: bytes | None = self._pipe.read(READ_BYTES)
        self._emit(self._grouper.feed(data or b""))
        return data

    def _flush(self, *, last: bool = False) -> None:
        self._emit(self._grouper.flush(last=last))

    def _close(self) -> None:
        if self._pipe.closed:
            return
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        self._flush(last=True)
        for timer in (self._timer, self._window):
            if timer is not None:
                timer.cancel()
        self._end_window()

    def _emit(self, records: list[Output]) -> None:
        now = time.monotonic()
        for record in records:
            self._last.append((now, record.text))
            if self._window is None:
                self._window = self._loop.call_later(WINDOW_S, self._end_window)
            if self._logged < MAX_RECORDS:
                self._logged += 1
                log.log(record.level, "engine %d: %s", self._pid, record.text)
            else:
                self._dropped += record.lines

    def _end_window(self) -> None:
        self._window = None
        self._logged = 0
        if self._dropped:
            log.warning("engine %d: %d more lines within %g s were left out", self._pid, self._dropped, WINDOW_S)
            self._dropped = 0
