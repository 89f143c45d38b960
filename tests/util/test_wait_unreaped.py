"""Waiting for a child process without reaping it, with what the system provides."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from typing import Any

import pytest

from lean_ovms.util.child_process import wait_unreaped


def test_the_status_is_still_there() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as child:
        wait_unreaped(child.pid)
        assert os.waitpid(child.pid, os.WNOHANG)[1] == 7 << 8
        child.returncode = 7
    with pytest.raises(ChildProcessError):
        wait_unreaped(child.pid)


class Queue:
    """What select.kqueue returns on macOS."""

    def __init__(self) -> None:
        self.closed = False

    def control(self, changes: list[Any], count: int) -> None:
        [(pid, kind, flags, notes)] = changes
        assert (kind, flags, notes, count) == ("proc", 3, "exit", 1)
        if pid == 0:
            raise ProcessLookupError("no such process")

    def close(self) -> None:
        self.closed = True


def test_where_there_is_no_waitid(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: list[Queue] = []
    monkeypatch.delattr(os, "waitid")
    names = {"KQ_FILTER_PROC": "proc", "KQ_EV_ADD": 1, "KQ_EV_ONESHOT": 2, "KQ_NOTE_EXIT": "exit"}
    for name, value in {**names, "kevent": lambda *event: event}.items():
        monkeypatch.setattr(select, name, value, raising=False)
    monkeypatch.setattr(select, "kqueue", lambda: queues.append(Queue()) or queues[-1], raising=False)
    wait_unreaped(5)
    with pytest.raises(ChildProcessError):
        wait_unreaped(0)
    assert [queue.closed for queue in queues] == [True, True]
