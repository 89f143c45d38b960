"""Log lines to a file that may be moved away, deleted, or on a disk that is full: what fails is told, and stops nobody.

Each line is one write to a descriptor opened to append, so that several processes may share the file, and a line is
either there or lost: nothing half written waits in a buffer for a disk that has room again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from .handlers import LineHandler, own_record

RARELY_S = 60.0
"""A file that still cannot be written is told of again after so long."""


class LogFile(LineHandler):
    """Lines to the file of a path, which is opened anew when something else is there (logrotate), or nothing.

    tell: gets a record when lines are lost, and when they are no longer.
    """

    def __init__(self, path: str, tell: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._path = Path(path).absolute()
        self._tell = tell
        self._fd = -1
        self._place: tuple[int, int] | None = None
        self._lost = 0
        self._told_at = float("-inf")

    def open(self) -> None:
        """Open it if it is not open, or no longer what the path names. Raises OSError."""
        try:
            found = self._path.stat()
            there = found.st_dev, found.st_ino
        except FileNotFoundError:
            there = None
        if self._fd < 0 or there != self._place:
            self._shut()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            opened = os.fstat(self._fd)
            self._place = opened.st_dev, opened.st_ino

    def write(self, line: bytes, at: float) -> None:
        """Write it; if that fails, say so, but not for each line."""
        try:
            self.open()
            self._write(line)
        except OSError as error:
            self._lose(at, error)
        else:
            if self._lost:
                self._tell(
                    own_record(logging.INFO, "%s is written again: %d lines are not in it", self._path, self._lost)
                )
                self._lost, self._told_at = 0, float("-inf")

    def close(self) -> None:
        """Let go of the file."""
        self._shut()
        super().close()

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._fd, line) :]

    def _lose(self, now: float, error: OSError) -> None:
        self._lost += 1
        if abs(now - self._told_at) >= RARELY_S:  # the clock may be set back
            self._told_at = now
            self._tell(
                own_record(logging.ERROR, "--log_path %s: %s: lines are missing there", self._path, error.strerror)
            )

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._place = -1, None
