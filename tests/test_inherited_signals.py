"""Processes that tests start have the default signal handlers, however the tests were started: see
tests/conftest.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = "import signal; print([signal.getsignal(n).name for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)])"
PARENT = f"""
import os, signal, subprocess, sys
from tests.conftest import catch_ignored_signals

if "caught" in sys.argv:
    catch_ignored_signals()
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
os.kill(os.getpid(), signal.SIGHUP)
os.kill(os.getpid(), signal.SIGINT)
print("alive", flush=True)
"""


def started_by_a_shell(*arguments: str) -> list[str]:
    """Returns what PARENT prints if its shell ignores signals, as with nohup or in the background."""
    command = ["sh", "-c", 'trap "" INT HUP QUIT TERM; exec "$@"', "sh", sys.executable, "-c", PARENT, *arguments]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=root)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_children_get_the_defaults_and_the_run_still_ignores_the_signals() -> None:
    ignored, default = str(["SIG_IGN"] * 3), str(["SIG_DFL"] * 3)
    assert started_by_a_shell() == [ignored, "alive"]
    assert started_by_a_shell("caught") == [default, "alive"]


def test_no_signal_is_ignored_in_this_run() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        assert signal.getsignal(number) is not signal.SIG_IGN
