"""Log handlers: a stream whose reader is slow, missing or gone; a file that is moved, deleted or on a full disk."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lean_ovms.observability import logging as logs
from lean_ovms.observability.logging import NonBlockingHandler, ReopeningFileHandler


class Reader:
    """Both ends of a pipe, and what was read from it so far."""

    def __init__(self) -> None:
        self.fd, self.end = os.pipe()
        self.text = b""

    def read(self, until: bytes) -> list[str]:
        """Returns all lines up to the first with this end."""
        while not self.text.endswith(until + b"\n"):
            data = os.read(self.fd, 1 << 16)
            assert data
            self.text += data
        return self.text.decode().splitlines()


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    for fd in (reader.fd, reader.end):
        os.close(fd)


@pytest.fixture
def logger(reader: Reader) -> Iterator[logging.Logger]:
    logger = logging.Logger("x")
    handler = NonBlockingHandler(reader.end)
    logger.addHandler(handler)
    yield logger
    for writer in writers():
        writer.join(300)
        assert not writer.is_alive()
    handler.close()


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "log"]


def test_a_line_is_written_at_once_in_the_thread_that_logs_it(reader: Reader, logger: logging.Logger) -> None:
    logger.info("one %d", 1)
    assert os.read(reader.fd, 100) == b"one 1\n"
    assert not writers()


def test_lines_wait_for_a_reader_and_keep_their_order(reader: Reader, logger: logging.Logger) -> None:
    words = [f"{i} {'x' * 200}" for i in range(1000)]
    for word in words:
        logger.info(word)
    assert len(writers()) == 1
    assert reader.read(words[-1].encode()) == words
    logger.info("later")
    assert reader.read(b"later") == [*words, "later"]
    for writer in writers():
        writer.join(300)
    assert not writers()


def test_what_does_not_fit_is_lost_and_counted(
    reader: Reader, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_BUFFERED_BYTES", 100_000)
    for i in range(2000):
        logger.info("%d %s", i, "x" * 200)
    taker = threading.Thread(target=reader.read, args=(b"end",))
    taker.start()
    for writer in writers():
        writer.join(300)
    logger.info("end")
    taker.join()
    *lines, _ = reader.read(b"end")
    kept = [int(line.split()[0]) for line in lines if line.endswith("x")]
    dropped = [int(line.split()[0]) for line in lines if line.endswith(" log lines dropped: the reader was too slow")]
    assert kept == sorted(set(kept))
    assert 0 < len(kept) < 2000
    assert len(kept) + sum(dropped) == 2000  # reported once, or twice if there was space meanwhile


def test_a_line_longer_than_the_pipe_comes_whole(reader: Reader, logger: logging.Logger) -> None:
    logger.info("x" * 300_000)
    logger.info("end")
    assert reader.read(b"end") == ["x" * 300_000, "end"]


def test_several_threads_do_not_mix_their_lines(reader: Reader, logger: logging.Logger) -> None:
    def write(letter: str) -> None:
        for _ in range(300):
            logger.info(letter * 500)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.info("end")
    lines = reader.read(b"end")
    assert sorted(set(lines)) == ["a" * 500, "b" * 500, "c" * 500, "end"]
    assert len(lines) == 901


@pytest.mark.parametrize("waiting", [False, True])
def test_a_reader_that_is_gone_is_no_error(waiting: bool, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader()
    handler = NonBlockingHandler(reader.end)
    record = logging.makeLogRecord({"msg": "x" * 10_000})
    for _ in range(20 if waiting else 0):
        handler.handle(record)
    os.close(reader.fd)
    handler.handle(record)
    handler.flush()
    os.close(reader.end)
    assert not writers()
    assert not capsys.readouterr().err


def test_flushing_waits_for_a_reader_but_not_for_ever(
    reader: Reader, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FLUSH_S", 0.01)
    [handler] = logger.handlers
    for _ in range(1000):
        logger.info("x" * 200)
    handler.flush()
    assert len(writers()) == 1
    monkeypatch.setattr(logs, "FLUSH_S", 5)
    logger.info("end of it x")
    taker = threading.Thread(target=reader.read, args=(b"end of it x",))
    taker.start()
    handler.flush()
    assert not writers()
    taker.join()


def test_a_message_that_does_not_fit_its_arguments_is_reported_by_logging(
    reader: Reader, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.info("%d", "no number")
    assert "no number" in capsys.readouterr().err
    logger.info("after")
    assert os.read(reader.fd, 100) == b"after\n"


def test_a_terminal_without_a_reader_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "RETRY_S", 0.001)
    master, terminal = os.openpty()
    handler = NonBlockingHandler(terminal)
    logger = logging.Logger("x")
    logger.addHandler(handler)
    for number in range(1000):
        logger.info("%d %s", number, "x" * 100)
    text = b""
    while not text.endswith(b"\r\n") or text.count(b"\n") < 1000:
        text += os.read(master, 1 << 16)
    assert [int(line.split()[0]) for line in text.splitlines()] == list(range(1000))
    assert os.get_blocking(terminal)
    for thread in writers():
        thread.join(300)
    handler.close()
    os.close(master)
    os.close(terminal)


class Rig:
    """A logger with a file in a directory of its own, and the handler's reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[logging.LogRecord] = []
        self.file = ReopeningFileHandler(str(path), self.reports.append)
        self.logger = logging.Logger("x")
        self.logger.addHandler(self.file)

    def log(self, line: str, at: float = 0.0) -> None:
        """Logs lines one at a time."""
        self.file.handle(logging.makeLogRecord({"msg": line, "created": at}))

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self.reports]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "logs").mkdir()
    rig = Rig(tmp_path / "logs" / "server.log")
    yield rig
    rig.file.close()


def test_each_line_is_in_the_file_at_once(rig: Rig) -> None:
    rig.log("one")
    assert rig.path.read_text() == "one\n"
    rig.log("zwei ü \udc80")
    assert rig.path.read_text("utf-8") == "one\nzwei ü \\udc80\n"


def test_another_file_is_begun_when_it_was_moved_or_deleted(rig: Rig) -> None:
    rig.log("one")
    rig.path.rename(rig.path.with_suffix(".1"))
    rig.log("two")
    rig.path.unlink()
    rig.log("three")
    assert rig.path.with_suffix(".1").read_text() == "one\n"
    assert rig.path.read_text() == "three\n"
    assert rig.reports == []


def test_a_directory_that_is_gone_is_reported_once_and_then_the_dropped_lines(rig: Rig) -> None:
    rig.log("one")
    shutil.rmtree(rig.path.parent)
    for number in range(3):
        rig.log(f"lost {number}", at=number)
    rig.path.parent.mkdir()
    rig.log("four")
    assert rig.warnings == [
        f"cannot write to --log_path {rig.path}: No such file or directory; log lines are lost",
        f"{rig.path} can be written again; 3 lines are missing in it",
    ]
    assert rig.path.read_text() == "four\n"


@pytest.mark.parametrize(
    ("cut", "kept"), [(0, ""), (3, "hal\n"), (4, "half\n"), (7, "half a\n"), (10, "half a\nlon\n")]
)
def test_after_half_a_line_the_next_one_begins_on_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, cut: int, kept: str
) -> None:
    """Only the first `cut` bytes of a text of two lines fit on the disk, and later nothing for a while."""
    write, left = os.write, [cut]

    def written(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(fd, data[: left[0]])
        left[0] -= count
        return count

    rig.log("one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", written)
        rig.log("half a\nlong line")
        rig.log("lost")
    rig.log("two")
    rig.log("three")
    assert rig.path.read_text() == f"one\n{kept}two\nthree\n"
    rig.path.rename(rig.path.with_suffix(".1"))
    rig.log("four")
    assert rig.path.read_text() == "four\n"


def test_a_file_that_was_moved_with_half_a_line_leaves_none_in_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.log("one")
    write, left = os.write, [b"x"]

    def written(fd: int, data: bytes) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, left.pop())

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", written)
        rig.log("xyz")
    rig.path.rename(rig.path.with_suffix(".1"))
    rig.log("two")
    assert rig.path.with_suffix(".1").read_text() == "one\nx"
    assert rig.path.read_text() == "two\n"


def test_a_full_disk_is_reported_once_a_minute() -> None:
    rig = Rig(Path("/dev/full"))
    for second in range(0, 200, 10):
        rig.log("x", at=float(second))
    assert rig.warnings == ["cannot write to --log_path /dev/full: No space left on device; log lines are lost"] * 4
    assert 200 / logs.REPEAT_S < 4
    rig.file.close()
