"""Log lines: text or JSON, one line whatever they contain."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from lean_ovms.observability import logging as log


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The logger of the package, which is restored when the test ends."""
    root = logging.getLogger("lean_ovms")
    before = root.handlers[:], root.level, root.propagate
    yield root
    root.handlers[:], root.level, root.propagate = before


@pytest.fixture
def logger(root: logging.Logger) -> logging.Logger:
    return logging.getLogger("lean_ovms.test")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_form_is_chosen_at_the_start(form: str, logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("INFO", form)
    logger.info("hello %s", "you")
    logger.debug("not this")
    [line] = capsys.readouterr().err.splitlines()
    if form == "text":
        assert line.endswith(" INFO lean_ovms.test: hello you")
    else:
        shown = orjson.loads(line)
        assert (shown["level"], shown["logger"], shown["message"]) == ("INFO", "lean_ovms.test", "hello you")
        assert shown["time"].endswith("Z")


def test_a_trace_is_one_line_of_json(logger: logging.Logger) -> None:
    try:
        raise ValueError("with\nbreaks")
    except ValueError:
        record = logger.makeRecord("lean_ovms.x", logging.ERROR, "f", 1, "it broke", (), sys.exc_info())
    line = log.JsonLines().format(record)
    assert "\n" not in line
    assert "with\nbreaks" in orjson.loads(line)["exception"]


def test_a_file_name_that_is_not_unicode_is_escaped_in_json(logger: logging.Logger) -> None:
    try:
        raise OSError("no \udcff")
    except OSError:
        record = logger.makeRecord("lean_ovms.x", logging.ERROR, "f", 1, "no %s", ("\udcff",), sys.exc_info())
    shown = orjson.loads(log.JsonLines().format(record))
    assert shown["message"] == "no \\udcff"
    assert "no \\udcff" in shown["exception"]


@pytest.mark.parametrize(
    ("text", "shown"), [("plain", "plain"), ("a\nb", "a\\nb"), ("\x1b[1m", "\\x1b[1m"), ("é", "é")]
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert log.safe(text) == shown


def test_what_is_long_is_cut() -> None:
    assert log.safe("x" * 300) == "x" * 200 + "…"


def test_a_file_that_cannot_be_written_yet_gets_the_lines_once_it_can(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / "server.log"
    with pytest.raises(FileNotFoundError):
        log.setup("INFO", path=str(path))
    logger.info("first")
    path.parent.mkdir()
    logger.info("second")
    log.setup("INFO")
    assert path.read_text().endswith("second\n")
    assert "first" in capsys.readouterr().err


def test_a_pipe_as_the_file_holds_nobody(tmp_path: Path, root: logging.Logger, logger: logging.Logger) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        log.setup("INFO", path=str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    log.setup("INFO", path=str(pipe))
    for _ in range(1000):
        logger.info("x" * 100)  # 128 KiB in total; the pipe has room for 64
    text = b""
    while text.count(b"\n") < 1000:
        text += os.read(reader, 1 << 16)
    root.handlers[-1].flush()
    os.close(reader)
    log.setup("INFO")
    assert len(text) > 100_000
