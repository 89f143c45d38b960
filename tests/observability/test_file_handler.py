"""A log file that comes, goes and fills its disk: lines that could be written are there, the others are told of."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lean_ovms.observability import file_handler
from lean_ovms.observability.file_handler import LogFile


class Rig:
    """A logger with a file, in a directory of its own, and what was told of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[logging.LogRecord] = []
        self.file = LogFile(str(path), self.told.append)
        self.logger = logging.Logger("x")
        self.logger.addHandler(self.file)

    def say(self, line: str, at: float = 0.0) -> None:
        """Log a line at a time."""
        self.file.handle(logging.makeLogRecord({"msg": line, "created": at}))

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self.told]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "logs").mkdir()
    rig = Rig(tmp_path / "logs" / "server.log")
    yield rig
    rig.file.close()


def test_each_line_is_in_the_file_at_once(rig: Rig) -> None:
    rig.say("one")
    assert rig.path.read_text() == "one\n"
    rig.say("zwei ü \udc80")
    assert rig.path.read_text("utf-8") == "one\nzwei ü \\udc80\n"


def test_another_file_is_begun_when_it_was_moved_or_deleted(rig: Rig) -> None:
    rig.say("one")
    rig.path.rename(rig.path.with_suffix(".1"))
    rig.say("two")
    rig.path.unlink()
    rig.say("three")
    assert rig.path.with_suffix(".1").read_text() == "one\n"
    assert rig.path.read_text() == "three\n"
    assert rig.told == []


def test_a_directory_that_is_gone_is_told_of_once_and_then_what_was_lost(rig: Rig) -> None:
    rig.say("one")
    shutil.rmtree(rig.path.parent)
    for number in range(3):
        rig.say(f"lost {number}", at=number)
    rig.path.parent.mkdir()
    rig.say("four")
    assert rig.warnings == [
        f"--log_path {rig.path}: No such file or directory: lines are missing there",
        f"{rig.path} is written again: 3 lines are not in it",
    ]
    assert rig.path.read_text() == "four\n"


def test_a_full_disk_is_told_of_now_and_then(tmp_path: Path) -> None:
    rig = Rig(Path("/dev/full"))
    for second in range(0, 200, 10):
        rig.say("x", at=float(second))
    assert rig.warnings == ["--log_path /dev/full: No space left on device: lines are missing there"] * 4
    assert 200 / file_handler.RARELY_S < 4
    rig.file.close()
