"""Lines to a reader that is slow, absent or gone: nobody waits for it, and what it missed is said."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from lean_ovms.observability import stderr_handler


class Reader:
    """The two ends of a pipe; what has come out of it so far."""

    def __init__(self) -> None:
        self.fd, self.end = os.pipe()
        self.text = b""

    def read(self, until: bytes) -> list[str]:
        """All lines, up to the first that ends so."""
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
    handler = stderr_handler.NonBlockingHandler(reader.end)
    logger.addHandler(handler)
    yield logger
    writer = handler._writer
    if writer is not None:
        writer.join(5)
        assert not writer.is_alive()
    handler.close()


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "log"]


def test_a_line_is_written_at_once_by_whoever_logs_it(reader: Reader, logger: logging.Logger) -> None:
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
        writer.join(5)
    assert not writers()


def test_what_does_not_fit_is_lost_and_counted(
    reader: Reader, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stderr_handler, "MAX_WAITING", 100_000)
    for i in range(2000):
        logger.info("%d %s", i, "x" * 200)
    taker = threading.Thread(target=reader.read, args=(b"end",))
    taker.start()
    for writer in writers():
        writer.join(5)
    logger.info("end")
    taker.join()
    *lines, _ = reader.read(b"end")
    kept = [int(line.split()[0]) for line in lines if line.endswith("x")]
    told = [int(line.split()[0]) for line in lines if line.endswith(" lines are lost: nobody read them")]
    assert kept == sorted(set(kept))
    assert 0 < len(kept) < 2000
    assert len(kept) + sum(told) == 2000  # told where they are missing: once or, if there was room meanwhile, twice


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
    handler = stderr_handler.NonBlockingHandler(reader.end)
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
    monkeypatch.setattr(stderr_handler, "FLUSH_S", 0.01)
    [handler] = logger.handlers
    for _ in range(1000):
        logger.info("x" * 200)
    handler.flush()
    assert len(writers()) == 1
    monkeypatch.setattr(stderr_handler, "FLUSH_S", 5)
    logger.info("end of it x")
    taker = threading.Thread(target=reader.read, args=(b"end of it x",))
    taker.start()
    handler.flush()
    assert not writers()
    taker.join()


def test_a_message_that_does_not_fit_its_arguments_is_told_as_everywhere(
    reader: Reader, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.info("%d", "no number")
    assert "no number" in capsys.readouterr().err
    logger.info("after")
    assert os.read(reader.fd, 100) == b"after\n"


def test_a_terminal_that_nobody_reads_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stderr_handler, "AGAIN_S", 0.001)
    master, terminal = os.openpty()
    handler = stderr_handler.NonBlockingHandler(terminal)
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
        thread.join(5)
    handler.close()
    os.close(master)
    os.close(terminal)
