"""Children that are started ahead are given out once, replaced if they have died, and never left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from lean_ovms.engine.client import prestart
from lean_ovms.engine.client.prestart import Spawned

pytestmark = pytest.mark.slow
"""Each test starts processes."""
UNTIL_CLOSED = "import socket, sys; socket.socket(fileno=int(sys.argv[-1])).recv(1)"


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    known = (sys.executable, "-c", UNTIL_CLOSED)
    monkeypatch.setattr(prestart, "COMMAND", known)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    yield known
    prestart.discard()


def ended(child: Spawned) -> int:
    child.ours.close()
    child.output.close()
    return child.process.wait(300)


def test_the_next_one_wanted_is_the_one_started_ahead(command: tuple[str, ...]) -> None:
    prestart.prestart()
    [waiting] = prestart._prestarted
    first, second = prestart.spawn(list(command)), prestart.spawn(command)
    assert first == waiting
    assert second.process.pid != first.process.pid
    assert [ended(first), ended(second)] == [0, 0]
    assert prestart.PREIMPORT in first.process.args
    assert prestart.PREIMPORT not in second.process.args


def test_one_that_died_meanwhile_is_not_given_out(command: tuple[str, ...]) -> None:
    prestart.prestart()
    [dead] = prestart._prestarted
    dead.process.kill()
    assert ended(dead) == -9
    child = prestart.spawn(command)
    assert child.process.pid != dead.process.pid
    assert ended(child) == 0


def test_another_command_gets_its_own(command: tuple[str, ...]) -> None:
    prestart.prestart()
    child = prestart.spawn([*command, "other"])
    assert "other" in child.process.args
    assert ended(child) == 0
    assert len(prestart._prestarted) == 1


def test_what_nobody_wanted_is_gone_after_forgetting() -> None:
    prestart.prestart()
    [child] = prestart._prestarted
    prestart.discard()
    assert child.process.returncode is not None
    assert child.ours.fileno() == -1
    assert prestart._prestarted == []


def test_on_a_single_core_none_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    prestart.prestart()
    assert prestart._prestarted == []


def test_what_cannot_be_started_is_an_error_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "COMMAND", ("/nowhere/python",))
    prestart.prestart()
    with pytest.raises(FileNotFoundError):
        prestart.spawn(("/nowhere/python",))
