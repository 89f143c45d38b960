"""The life of a child: every way to start, every way to end, and nothing left behind."""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import subprocess

import pytest
import uvloop

import lean_ovms
from lean_ovms.engine import protocol
from lean_ovms.engine.client import prestart
from lean_ovms.engine.client.child import Child, describe_exit
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
        assert ready.pieces[1] == "\xff"
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
