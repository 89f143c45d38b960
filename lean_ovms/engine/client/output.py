"""Turns what an engine child writes to its stdout and stderr into records of our log: one per line, a traceback as one.

OpenVINO and GenAI write there, and so does Python when it fails; the child's own log has a descriptor of its own.
The pipe is read as fast as it fills, because a full one would stop the engine; what the log does not take is counted.
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
"""After this time without another line a record is complete."""
MAX_LINE = 4096
"""Bytes of a line; the rest of it is left out."""
MAX_LINES = 200
"""Lines of a record; a longer one is continued in the next."""
MAX_RECORDS = 100
"""Records in WINDOW_S; the lines of others are counted."""
WINDOW_S = 1.0
SHOWN_LINES = 5
"""Lines of a record in the last words of a child."""
LAST_S = 10.0
"""How old a record may be to be named as the last words of a child."""
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
"""How GenAI's and OpenVINO's lines begin."""
FAILURE = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|Exception ignored |Exception in thread"
    r"|--- Logging error ---|(?:Current thread|Thread) 0x|terminate called|LLVM ERROR"
)
"""Begins a record that all further lines belong to: a traceback, and the last words of the C++ runtime."""
WARNING = re.compile(r"\S+:\d+: \w*Warning: ")


class Output(NamedTuple):
    """A record to log: its lines joined, every line after the first one indented, so that none can look like ours."""

    level: int
    text: str
    lines: int


class Grouper:
    """Bytes to records."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._cut = 0  # bytes left out of it
        self._level = logging.INFO
        self._lines: list[str] = []  # of the record that may still be continued
        self._takes_all = False  # it is continued by lines that are not indented, too

    @property
    def pending(self) -> bool:
        """A record may still be continued."""
        return bool(self._lines)

    def feed(self, data: bytes) -> list[Output]:
        """Returns the records that are complete now."""
        found: list[Output] = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._extend(part)
            found += self._end_line()
        self._extend(rest)
        return found

    def flush(self, *, last: bool = False) -> list[Output]:
        """Returns the record that no further line continues.

        Args:
            last: Whether a line that has no end is part of it, since no more is read.
        """
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
    """Returns the beginning and the end of a record, in one line."""
    lines = [line.strip() for line in text.split("\n")]
    return " ".join(lines if len(lines) <= SHOWN_LINES else [*lines[:2], "…", *lines[2 - SHOWN_LINES :]])


class OutputLog:
    """Reads one child's pipe, and logs."""

    def __init__(self, pipe: FileIO, pid: int) -> None:
        """Reads the log of a child. A loop must be running.

        Args:
            pipe: Our end of the pipe, which does not block; it is closed here.
            pid: The number of the process.
        """
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
        """The records of its last seconds in one line, for a message about its end; "" if there are none."""
        since = time.monotonic() - LAST_S
        return " | ".join(_shortened(text) for at, text in self._last if at >= since)

    def finish(self) -> None:
        """Logs the rest of what a child that has ended wrote, and closes the pipe. Idempotent."""
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
        """Returns what was there, after it is logged; None: nothing; b"": it is closed."""
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
            log.warning("engine %d: %d more lines within %g s are left out", self._pid, self._dropped, WINDOW_S)
            self._dropped = 0
