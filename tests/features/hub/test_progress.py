"""The progress of a pull: a bar on a terminal, lines in a log."""

from __future__ import annotations

import io
import logging

import pytest

from lean_ovms.features.hub.progress import CLEAR, DownloadProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "71")
    out, received = Terminal(), iter([0, 30_000_000])
    progress = DownloadProgress("org/m", 120_000_000, lambda: next(received), bar=True, out=out)
    progress.report(0.0)
    progress.report(10.0)
    assert out.getvalue().split(CLEAR)[1:] == [
        "org/m:   0%|                               | 0.00/120M [00:00<?, ?B/s]",
        "org/m:  25%|#####                 | 30.0M/120M [00:10<00:30, 3.00MB/s]",
    ]


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 5_000_000_000, 0.0, "0 % of 5.00GB, ?B/s, ? left"),
        (30_000_000, 120_000_000, 10.0, "25 % of 120MB, 3.00MB/s, 00:30 left"),
        (10_000_000, 36_610_000_000, 1.0, "0 % of 36.6GB, 10.0MB/s, 1:01:00 left"),
        (10, 10, 1.0, "100 % of 10.0B, 10.0B/s, 00:00 left"),
    ],
)
def test_lines_of_a_log(done: int, total: int, seconds: float, text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lean_ovms.hub")
    DownloadProgress("org/m", total, lambda: done, bar=True, out=io.StringIO()).report(seconds)
    assert caplog.messages == [f"org/m: {text}"]


def test_an_empty_download() -> None:
    DownloadProgress("org/m", 0, lambda: 0, bar=True, out=Terminal()).report(0.0)


def test_the_thread_ends_and_clears_the_bar() -> None:
    out = Terminal()
    with pytest.raises(ValueError, match="x"), DownloadProgress("org/m", 1, lambda: 0, bar=True, out=out):
        raise ValueError("x")
    assert out.getvalue().endswith(CLEAR)
