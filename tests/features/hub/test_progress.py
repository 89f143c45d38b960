"""The progress of a pull: a bar on a terminal, lines in a log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from lean_ovms.features.hub.progress import CLEAR, WINDOW_S, DownloadProgress, describe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("done", "total", "speed", "text"),
    [
        (0, 5_000_000_000, 0.0, "0 % of 5.0 GB, 0.0 MB/s"),
        (1_250_000_000, 5_000_000_000, 50e6, "25 % of 5.0 GB, 50.0 MB/s, 1:15 left"),
        (0, 36_610_000_000, 10e6, "0 % of 36.6 GB, 10.0 MB/s, 1:01:01 left"),
        (10, 10, 1e6, "100 % of 10 B, 1.0 MB/s, 0:00 left"),
        (0, 10_000_000, 999.0, "0 % of 10.0 MB, 0.0 MB/s"),
        (0, 0, 1.0, "0 % of 0 B, 0.0 MB/s"),
    ],
)
def test_what_is_said(done: int, total: int, speed: float, text: str) -> None:
    assert describe(done, total, speed) == text


@pytest.fixture
def received() -> Iterator[int]:
    """Yields the bytes received at each report: 30 MB, then nothing more."""
    return iter([0, 30_000_000, 30_000_000, 30_000_000])


def test_a_bar_on_a_terminal(received: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    progress = DownloadProgress("org/m", 120_000_000, lambda: next(received), bar=True, out=out)
    progress.report(0.0)
    progress.report(10.0)
    shown = out.getvalue().split(CLEAR)
    assert shown[1:] == [
        "org/m [........................] 0 % of 120 MB, 0.0 MB/s",
        "org/m [######..................] 25 % of 120 MB, 3.0 MB/s, 0:30 left",
    ]
    monkeypatch.setenv("COLUMNS", "30")
    progress.report(10.0 + WINDOW_S + 1)
    assert out.getvalue().split(CLEAR)[-1] == "org/m [######................"


def test_the_speed_is_that_of_the_last_seconds(
    received: Iterator[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="lean_ovms.hub")
    monkeypatch.setattr(logging.getLogger("lean_ovms"), "propagate", True)
    progress = DownloadProgress("org/m", 120_000_000, lambda: next(received), bar=True, out=io.StringIO())
    for now in (0.0, 10.0, 10.0 + WINDOW_S, 20.0 + WINDOW_S):
        progress.report(now)
    assert caplog.messages[-1] == "org/m: 25 % of 120 MB, 0.0 MB/s"
    assert caplog.messages[1] == "org/m: 25 % of 120 MB, 3.0 MB/s, 0:30 left"


def test_the_thread_ends_and_clears_the_bar() -> None:
    out = Terminal()
    with pytest.raises(ValueError, match="x"), DownloadProgress("org/m", 1, lambda: 0, bar=True, out=out):
        raise ValueError("x")
    assert out.getvalue().endswith(CLEAR)
