"""Shows the progress of a download: as a bar on a terminal, and otherwise as a line in the log every ten seconds."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from ...util.sizes import human_size

log = logging.getLogger("lean_ovms.hub")

BAR_S, LINE_S = 0.25, 10.0
"""Seconds between two pictures of the bar, and between two lines of the log."""
WINDOW_S = 30.0
"""Seconds over which the speed is measured: the hub's library writes 10 MB at once."""
SLOWEST = 1000
"""Bytes a second below which no time is shown: there was a pause."""
BAR = 24
CLEAR = "\r\x1b[K"


class DownloadProgress:
    """A context manager with a thread that reports the progress of a download."""

    def __init__(
        self, name: str, total: int, read: Callable[[], int], *, bar: bool = False, out: TextIO | None = None
    ) -> None:
        """Keeps the settings; reporting begins with the block.

        Args:
            name: The name of the downloaded model or file.
            total: The size of the download in bytes.
            read: Returns the number of received bytes.
            bar: Whether to show a bar on a terminal instead of lines in the log.
            out: The file to which the bar is written; None for stderr.
        """
        self._name, self._total, self._read = name, total, read
        self._out = sys.stderr if out is None else out
        self._samples: deque[tuple[float, int]] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.has_bar = bar and self._out.isatty()

    def __enter__(self) -> DownloadProgress:
        self._samples.append((time.monotonic(), self._read()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self.has_bar:
            self._print(CLEAR)

    def report(self, now: float) -> None:
        """Reports the progress.

        Args:
            now: The time by time.monotonic.
        """
        self._samples.append((now, self._read()))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        (begin, before), (_, done) = self._samples[0], self._samples[-1]
        text = describe(done, self._total, max(0, done - before) / max(now - begin, 1e-3))
        if not self.has_bar:
            log.info("%s: %s", self._name, text)
            return
        filled = BAR * min(done, self._total) // max(self._total, 1)
        line = f"{self._name} [{'#' * filled}{'.' * (BAR - filled)}] {text}"
        self._print(CLEAR + line[: shutil.get_terminal_size().columns - 1])

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _run(self) -> None:
        while not self._ended.wait(BAR_S if self.has_bar else LINE_S):
            self.report(time.monotonic())


def describe(done: int, total: int, speed: float) -> str:
    """Describes the progress of a download: percent, size, speed and remaining time.

    Args:
        done: The number of received bytes.
        total: The size of the whole download in bytes.
        speed: The bytes per second; below SLOWEST no remaining time is given.
    """
    text = f"{100 * done // max(total, 1)} % of {human_size(total)}, {speed / 1e6:.1f} MB/s"
    if speed < SLOWEST:
        return text
    minutes, seconds = divmod(round((total - done) / speed), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{text}, {f'{hours}:{minutes:02}' if hours else minutes}:{seconds:02} left"
