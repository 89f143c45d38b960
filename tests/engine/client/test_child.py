"""A child: every way to start and to end, with nothing left behind, and its output, which becomes log records."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import uvloop

import lean_ovms
from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.engine.client import child as child_module
from lean_ovms.engine.client import prestart
from lean_ovms.engine.client.child import MAX_LINE, MAX_LINES, MAX_RECORDS, Child, Grouper, OutputLog, describe_exit
from lean_ovms.engine.client.engine import EngineClient
from lean_ovms.errors import StartError
from tests.engine.client.harness import PATIENT_S, command, run_fast, until
from tests.waiting import cancel

pytestmark = pytest.mark.slow
"""Each test starts a process."""

LOAD = protocol.Load({"model_name": "m"})


class Life:
    """A child, with the records that it delivered, and whether it was lost."""

    def __init__(self):
        self.records = []
        self.lost = 0
        self.child = Child(self.records.extend, self.note)

    def note(self, child):
        assert child is self.child
        self.lost += 1

    async def start(self, part="ok", timeout_s=PATIENT_S):
        return await self.child.start(command(part), LOAD, timeout_s)


def gone(pid):
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_life_from_start_to_stop_on_either_loop(new_loop):
    async def main():
        life = Life()
        ready = await life.start()
        assert ready.vocabulary["pieces"][1] == "\xff"
        life.child.send(protocol.Ping(5))
        await until(lambda: life.records)
        assert life.records[0].id == 5
        await life.child.stop()
        await life.child.stop()
        assert gone(life.child.pid)
        assert life.child.ended
        assert not life.child.alive
        assert life.lost == 1

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(main())


FAILING = {
    "die": "the engine died while loading the model: exit status 7",
    "load_failed": "no such model: /x",
    "garbage": "it sent invalid data",
    "wrong": "it sent invalid data",
}


@pytest.mark.parametrize("part", FAILING)
async def test_a_child_that_does_not_get_ready_says_why(part):
    life = Life()
    with pytest.raises(StartError) as error:
        await life.start(part)
    assert str(error.value) == FAILING[part]
    await life.child.stop()
    assert gone(life.child.pid)
    assert life.lost == 0


def test_a_child_that_loads_too_long_is_killed():
    async def main():
        life = Life()
        with pytest.raises(StartError, match=r"within 30 s \(--engine_load_timeout_s\)"):
            await life.start("hang", 30.0)
        assert gone(life.child.pid)

    run_fast(main)


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, r"SIGKILL \(out of memory\?\)"), (signal.SIGBUS, r"SIGBUS \(was a file of the model")],
)
async def test_the_error_of_a_killed_loader_names_its_signal(number, words):
    life = Life()
    task = asyncio.create_task(life.start("hang"))
    await until(lambda: life.child.pid)
    os.kill(life.child.pid, number)
    with pytest.raises(StartError, match=f"killed by {words}"):
        await task


async def test_no_shortage_of_memory_is_blamed_for_what_was_ended_on_purpose(caplog):
    life = Life()
    await life.start("deaf")
    with caplog.at_level("INFO", "lean_ovms.engine"):
        life.child.kill("it was silent")
        await life.child.stop()
    assert f"engine {life.child.pid} is gone: killed by SIGKILL" in caplog.messages


async def test_a_start_that_is_given_up_kills_the_child():
    life = Life()
    task = asyncio.create_task(life.start("hang"))
    await until(lambda: life.child.pid)
    await cancel(task)
    await until(lambda: gone(life.child.pid))


async def test_a_command_that_does_not_exist_is_a_start_error():
    child = Child(lambda records: None, lambda child: None)
    with pytest.raises(StartError, match="cannot start the engine: No such file"):
        await child.start(["/does/not/exist"], LOAD, 5.0)
    await child.stop()
    assert not child.alive


@pytest.mark.parametrize("ours", [True, False])
async def test_the_child_gets_its_pipe_and_nothing_else_of_ours(tmp_path, monkeypatch, ours):
    """`ours` says whether our logging is set up. A program with its own logging gets the child's lines through the
    pipe."""
    monkeypatch.setattr(prestart, "_writes_logs", lambda: ours)
    with open(tmp_path / "inheritable", "w") as file:
        os.set_inheritable(file.fileno(), True)
        with pytest.raises(StartError) as error:
            await Life().start("report")
    report = json.loads(str(error.value))
    assert sorted(report["fds"]) == [0, 1, 2, *([report["log_fd"]] if ours else [])]
    assert report["log"] == (os.readlink("/proc/self/fd/2") if ours else None)
    assert report["stdin"] == "/dev/null"
    assert report["session"]
    assert report["blas"] == "1"
    assert pathlib.Path(report["package"]).parents[1] == pathlib.Path(lean_ovms.__file__).parent
    assert report["config"] == {"model_name": "m"}


async def test_our_end_of_the_pipe_is_not_inherited_by_later_children():
    life = Life()
    await life.start()
    other = subprocess.Popen(["sleep", "5"], close_fds=False)
    try:
        await life.child.stop()
        assert gone(life.child.pid)
        assert "stopped" in life.child.why
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("part", ["holder", "escapee"])
async def test_a_pipe_that_a_grandchild_holds_open_does_not_hide_the_death(part):
    life = Life()
    await life.start(part)
    task = pathlib.Path(f"/proc/{life.child.pid}/task/{life.child.pid}/children")
    await until(lambda: task.read_text())
    (holder,) = map(int, task.read_text().split())
    try:
        os.kill(life.child.pid, signal.SIGKILL)
        await until(lambda: life.lost == 1 and gone(life.child.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder, signal.SIGKILL)


async def test_what_the_child_started_ends_with_it():
    life = Life()
    await life.start("holder")
    task = pathlib.Path(f"/proc/{life.child.pid}/task/{life.child.pid}/children")
    await until(lambda: task.read_text())
    (grandchild,) = task.read_text().split()
    life.child.kill("test")
    await until(lambda: gone(life.child.pid))
    status = pathlib.Path(f"/proc/{grandchild}/stat")
    await until(lambda: not status.exists() or status.read_text().split()[2] == "Z")


def test_a_child_that_ignores_all_requests_to_end_is_killed():
    async def main():
        life = Life()
        await life.start("stubborn", timeout_s=1e9)
        await life.child.stop()
        assert gone(life.child.pid)

    run_fast(main)


async def test_where_pidfds_are_forbidden_a_thread_waits(monkeypatch):
    def forbidden(pid):
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    life = Life()
    await life.start()
    os.kill(life.child.pid, signal.SIGKILL)
    await until(lambda: life.lost and gone(life.child.pid))
    await life.child.stop()


async def test_writing_to_a_child_that_does_not_read_does_not_block():
    life = Life()
    await life.start("deaf")
    for number in range(50):
        life.child.send(protocol.Encode(number, ["x" * 100_000], True))
    life.child.kill("test")
    await until(lambda: life.lost == 1)
    await life.child.stop()


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit status 0"), (3, "exit status 3"), (-11, "killed by SIGSEGV"), (-200, "killed by signal 200")],
)
def test_an_exit_in_words(status, words):
    assert describe_exit(status) == words


TRACEBACK = """Traceback (most recent call last):
  File "model.py", line 3, in load
    raise RuntimeError
RuntimeError: Exception from src/core.cpp:104:
Check 'false' failed

Device not found
"""
FATAL = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "a.py", line 3 in serve
"""


def group(text: str | bytes) -> list[tuple[int, str]]:
    grouper = Grouper()
    data = text if isinstance(text, bytes) else text.encode()
    found = grouper.feed(data) + grouper.flush(last=True)
    for size in (1, 3):  # for different cuts of the data
        other = Grouper()
        again = [r for i in range(0, len(data), size) for r in other.feed(data[i : i + size])] + other.flush(last=True)
        assert again == found
    return [(record.level, record.text) for record in found]


@pytest.mark.parametrize(
    ("text", "level", "shown"),
    [
        ("[ERROR] No kernel\n", logging.ERROR, "No kernel"),
        ("[ WARN ]: slow\n", logging.WARNING, "slow"),
        ("[Info] loaded\n", logging.INFO, "loaded"),
        ("[DEBUG] details\n", logging.DEBUG, "details"),
        ("[5] a list\n", logging.INFO, "[5] a list"),
        ("/a/b.py:3: UserWarning: old\n  code()\n", logging.WARNING, "/a/b.py:3: UserWarning: old\n      code()"),
        ("without an end", logging.INFO, "without an end"),
        ("loading 10 %\rloading 20 %\r\n", logging.INFO, "loading 20 %"),
        ("terminate called\n  what():  x\nAborted\n", logging.ERROR, "terminate called\n      what():  x\n    Aborted"),
        (FATAL, logging.ERROR, FATAL.strip().replace("\n\n", "\n").replace("\n", "\n    ")),
        (b"\xff\x1b[2J2026-01-01 INFO forged\n", logging.INFO, "�\\x1b[2J2026-01-01 INFO forged"),
    ],
)  # fmt: skip
def test_a_line_is_a_record_with_its_level(text: str | bytes, level: int, shown: str) -> None:
    assert group(text) == [(level, shown)]


def test_each_line_is_a_record_and_blank_ones_are_none() -> None:
    assert [text for _, text in group("\n\none\n \ntwo\n[ERROR] three\nfour\n")] == ["one", "two", "three", "four"]


@pytest.mark.parametrize("chained", ["", "\nDuring handling of the above exception, another exception occurred:\n\n"])
def test_a_traceback_with_an_error_of_many_lines_is_one_record_whose_lines_cannot_look_like_ours(chained: str) -> None:
    text = TRACEBACK + (chained + TRACEBACK if chained else "")
    [(level, shown), (after, tagged)] = group(text + "[WARN] later\n")
    assert (level, after, tagged) == (logging.ERROR, logging.WARNING, "later")
    first, *others = shown.split("\n")
    assert first == "Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in others)
    assert [line.strip() for line in others] == [line.strip() for line in text.splitlines()[1:] if line]


def test_long_lines_and_long_records_are_bounded() -> None:
    [(_, long)] = group("x" * (MAX_LINE + 9) + "\n")
    assert long == "x" * MAX_LINE + "… (9 bytes left out)"
    records = group("Traceback (most recent call last):\n" + "  f\n" * MAX_LINES * 2)
    assert [text.count("\n") + 1 for _, text in records] == [MAX_LINES, MAX_LINES, 1]


@contextlib.contextmanager
def reading(pid: int = 7) -> Iterator[tuple[OutputLog, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    found = OutputLog(FileIO(reader, "r"), pid)
    try:
        yield found, writer
    finally:
        with contextlib.suppress(OSError):
            os.close(writer)
        found.finish()


async def test_a_line_without_a_successor_is_logged_soon(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), reading() as (_, writer):
        os.write(writer, b"[ERROR] one\n")
        await until(lambda: caplog.messages)
    assert caplog.record_tuples == [("lean_ovms.engine.output", logging.ERROR, "engine 7: one")]


async def test_a_flood_is_read_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    total = 30_000
    with caplog.at_level("INFO"), reading() as (log, writer):
        lines = b"".join(b"line %d\n" % number for number in range(total))
        await asyncio.to_thread(_write_all, writer, lines)  # blocks until it is read
        os.close(writer)
        await until(lambda: log._pipe.closed)
    counts = [record.args[1] for record in caplog.records if "left out" in record.message]
    shown = [record for record in caplog.records if "left out" not in record.message]
    assert sum(counts) + len(shown) == total
    assert len(shown) <= MAX_RECORDS * (len(counts) + 1)  # the last line may be in a window of its own


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def test_old_output_is_no_reason_for_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    with reading() as (log, writer):
        os.write(writer, b"[ERROR] one\n[ERROR] two\n")
        os.close(writer)
        await until(lambda: log._pipe.closed)
        assert log.last_words == "one | two"
        monkeypatch.setattr(child_module, "LAST_S", -1.0)
        assert log.last_words == ""


@contextlib.asynccontextmanager
async def child(part: str = "ok") -> Any:
    lost: list[Child] = []
    found = Child(lambda records: None, lost.append)
    try:
        await found.start(command(part), protocol.Load({"model_name": "m"}), PATIENT_S)
        yield found, lost
    finally:
        await found.stop()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_last_lines_of_a_child_are_logged_with_its_death(
    new_loop: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> int:
        async with child() as (found, lost):
            found.send(
                protocol.Encode(1, ["abort", "[INFO] soon\n", "terminate called\n  what(): no", " memory"], True)
            )
            await until(lambda: lost and not found.alive)
            return int(found.pid)

    loop = new_loop()
    with caplog.at_level("INFO"):
        try:
            pid = loop.run_until_complete(main())
        finally:
            loop.close()
    assert [(r.name, r.levelname, r.message) for r in caplog.records if r.name != "asyncio"] == [
        ("lean_ovms.engine.output", "INFO", f"engine {pid}: soon"),
        ("lean_ovms.engine.output", "ERROR", f"engine {pid}: terminate called\n      what(): no memory"),
        (
            "lean_ovms.engine",
            "ERROR",
            f"engine {pid} is gone: killed by SIGABRT; its last output: soon | terminate called what(): no memory",
        ),
    ]  # fmt: skip
    assert capfd.readouterr().err == ""


async def test_an_error_of_a_child_that_cannot_start_names_the_exception(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        StartError, match=r"exit status 1; its last output: Traceback.* … .*RuntimeError: no such device$"
    ):
        async with child("die_talking"):
            pass
    assert capfd.readouterr().err == ""


async def test_a_child_that_is_stopped_after_its_pipe_has_ended_has_crashed(caplog: pytest.LogCaptureFixture) -> None:
    async with child() as (found, lost):
        found._reap, reap = lambda: None, found._reap  # delays the notice of its end until after that of the pipe
        found.send(protocol.Encode(1, ["abort", "terminate called\n"], True))
        await until(lambda: lost)
        stopping = asyncio.create_task(found.stop())
        await asyncio.sleep(0)
        with caplog.at_level("INFO"):
            while Path(f"/proc/{found.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                await asyncio.sleep(0.002)
            reap()
            await stopping
    assert f"engine {found.pid} is gone: killed by SIGABRT; its last output: terminate called" in caplog.messages


NATIVE = """
import ctypes, os, runpy, sys
sys.argv = ["worker", sys.argv[-1]]
import lean_ovms.engine.task as loop
def turn(self, turn=loop.Worker.turn):
    ctypes.CDLL(None).puts(b"[ERROR] printed by C")
    print("printed by Python")
    os.write(2, b"[WARN] to stderr\\n")
    loop.Worker.turn = turn
    import logging
    logging.getLogger("lean_ovms.engine").warning("the child's own")
    return turn(self)
loop.Worker.turn = turn
runpy.run_module("lean_ovms.engine.worker", run_name="__main__")
"""


async def test_the_log_of_the_real_child_is_as_it_was_and_what_is_printed_in_it_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setattr(prestart, "_writes_logs", lambda: True)
    engine = EngineClient(Config(fake_engine=True, log_path=str(tmp_path / "log")), [sys.executable, "-c", NATIVE])
    with caplog.at_level("INFO"):
        try:
            await engine.start()
            await until(lambda: len([r for r in caplog.records if r.name == "lean_ovms.engine.output"]) == 3)
        finally:
            await engine.stop()
    found = {(r.levelname, r.message.partition(": ")[2]) for r in caplog.records if r.name == "lean_ovms.engine.output"}
    assert found == {("ERROR", "printed by C"), ("INFO", "printed by Python"), ("WARNING", "to stderr")}
    own = "WARNING lean_ovms.engine: the child's own\n"
    shown = capfd.readouterr().err
    assert own in shown
    assert "printed" not in shown
    assert own in (tmp_path / "log").read_text()
