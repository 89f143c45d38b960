"""Locks on files and directories: who excludes whom, and when they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lean_ovms.util.files import take_lock

Opened = Callable[[], int]


@pytest.fixture(params=["file", "directory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Yields a function that opens the same file or directory once more; what is still open is closed at the end."""
    if request.param == "file":
        (tmp_path / "file").touch()
        path, flags = tmp_path / "file", os.O_RDWR
    else:
        path, flags = tmp_path, os.O_RDONLY | os.O_DIRECTORY
    descriptors: list[int] = []

    def opening() -> int:
        descriptors.append(os.open(path, flags))
        return descriptors[-1]

    yield opening
    for one in descriptors:
        try:
            os.close(one)
        except OSError:
            continue


@pytest.mark.parametrize(("first", "second", "both"), [
    (False, False, False), (False, True, False), (True, False, False), (True, True, True),
])  # fmt: skip
def test_only_shared_locks_go_together(opened: Opened, first: bool, second: bool, both: bool) -> None:
    one, other = opened(), opened()
    assert take_lock(one, shared=first)
    assert take_lock(other, shared=second) == both
    os.close(one)
    assert take_lock(other, shared=second)


def test_one_that_waits_gets_the_lock_when_it_is_released(opened: Opened) -> None:
    one, other = opened(), opened()
    assert take_lock(one)
    got: list[bool] = []
    waiting = threading.Thread(target=lambda: got.append(take_lock(other, wait=True)))
    waiting.start()
    assert not take_lock(opened())
    assert not got
    os.close(one)
    waiting.join(60)
    assert got == [True]
    assert not take_lock(opened())


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = (
        "import os, sys; from lean_ovms.util.files import take_lock\n"
        "print(take_lock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with path.open() as file:
            assert not take_lock(file.fileno(), shared=True)
            process.kill()
            process.wait(60)
            assert take_lock(file.fileno())


def test_a_file_system_without_locks_is_an_error(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.raises(OSError, match="not supported"):
        take_lock(opened())
