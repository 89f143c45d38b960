"""Shows the progress of a download: as a bar on a terminal, and otherwise as a line in the log every ten seconds."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TextIO

from tqdm import tqdm

log = logging.getLogger("lean_ovms.hub")

BAR_S, LINE_S = 0.25, 10.0
"""Seconds between two pictures of the bar, and between two lines of the log."""
LINE = "{percentage:.0f} % of {total_fmt}B, {rate_fmt}, {remaining} left"
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
        self._begin_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.has_bar = bar and self._out.isatty()

    def __enter__(self) -> DownloadProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self.has_bar:
            self._print(CLEAR)

    def report(self, elapsed_s: float) -> None:
        """Reports the progress after this time. The speed is the mean of the whole download."""
        meter = partial(tqdm.format_meter, self._read(), self._total, elapsed_s, unit="B", unit_scale=True)
        if self.has_bar:
            self._print(CLEAR + meter(prefix=self._name, ncols=shutil.get_terminal_size().columns - 1, ascii=" #"))
        else:
            log.info("%s: %s", self._name, meter(bar_format=LINE))

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _run(self) -> None:
        while not self._ended.wait(BAR_S if self.has_bar else LINE_S):
            self.report(time.monotonic() - self._begin_s)
