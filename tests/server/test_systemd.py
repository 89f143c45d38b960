"""sd_notify tells a supervisor that the server is ready, alive or stopping; without a supervisor nothing happens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.server import run
from lean_ovms.server.run import READY, SystemdNotifier


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(tmp_path / "notify"))
    sock.settimeout(300)
    return sock


def test_the_environment_names_it_and_children_do_not_inherit_it(listener: socket.socket) -> None:
    with listener:
        environ = {"NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": "5000000", "HOME": "/"}
        supervisor = SystemdNotifier.from_environ(environ)
        assert environ == {"HOME": "/"}
        assert supervisor.watchdog_s == 5.0
        supervisor.notify(READY, "STATUS=x")
        assert listener.recv(100) == b"READY=1\nSTATUS=x"


def test_a_watchdog_for_another_process_is_not_ours() -> None:
    assert (
        SystemdNotifier.from_environ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog_s == 0
    )
    assert SystemdNotifier.from_environ(
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid())}
    ).watchdog_s


def test_abstract_sockets_work() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0lean_ovms_test_{os.getpid()}")
        sock.settimeout(60)
        SystemdNotifier(f"@lean_ovms_test_{os.getpid()}").notify(READY)
        assert sock.recv(100) == b"READY=1"


def test_nobody_to_tell_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SystemdNotifier.from_environ({}).notify(READY)
    assert caplog.text == ""
    SystemdNotifier(str(tmp_path / "none")).notify(READY)
    assert "cannot notify the supervisor" in caplog.text


async def test_signs_of_life_come_within_the_period(listener: socket.socket) -> None:
    with listener:
        living = asyncio.ensure_future(SystemdNotifier(listener.getsockname(), 0.02).keep_alive())
        for _ in range(3):
            assert await asyncio.to_thread(listener.recv, 100) == b"WATCHDOG=1"
        living.cancel()
        await asyncio.wait([living])


@pytest.mark.slow
def test_a_server_notifies_when_it_is_ready_and_when_it_stops(listener: socket.socket, tmp_path: Path) -> None:
    """The server runs as under the unit: without a home, in a read-only working directory, and leaves nothing
    behind."""
    place = tmp_path / "cwd"
    place.mkdir(mode=0o555)
    environ = {k: v for k, v in os.environ.items() if k not in ("HOME", "TMPDIR") and not k.startswith("XDG_")}
    environ |= {"NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": "200000", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", "0", "--rest_bind_address", "127.0.0.1"]
    with (
        listener,
        subprocess.Popen(
            [*command, "--fake_engine"], cwd=place, env=environ, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            assert listener.recv(200).startswith(b"READY=1\n")
            assert listener.recv(200) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while not (said := listener.recv(200)).startswith(b"STOPPING=1"):
                assert said == b"WATCHDOG=1"
            assert process.wait(300) == 0
        finally:
            process.kill()
    assert list(place.iterdir()) == []


class FakeSignals:
    """serve.Signals without signals, because openvino sets a signal stack for this thread that is gone with its last
    model."""

    def __init__(self) -> None:
        self.stop, self.force = asyncio.Event(), asyncio.Event()


@pytest.mark.slow
async def test_signs_of_life_go_on_while_requests_are_finished(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = FakeSignals()
    monkeypatch.setattr(run, "Signals", lambda: signals)
    app = App(Config(drain_timeout_s=5, fake_engine=True, rest_port=0, rest_bind_address="127.0.0.1"), [])
    finished = asyncio.Event()

    async def settle(timeout_s: float) -> None:
        assert timeout_s == 5
        await finished.wait()

    app.drain = settle  # type: ignore[method-assign]
    with listener:
        serving = asyncio.create_task(run.serve(app, SystemdNotifier(listener.getsockname(), 0.02)))
        for _ in range(2):
            said = await asyncio.to_thread(listener.recv, 100)
        signals.stop.set()
        while not said.startswith(b"STOPPING=1"):
            said = await asyncio.to_thread(listener.recv, 100)
        for _ in range(3):
            assert await asyncio.to_thread(listener.recv, 100) == b"WATCHDOG=1"
        finished.set()
        assert await serving == 0
