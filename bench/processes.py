"""Starts the processes under test, waits until they are ready, reads their CPU time and memory, and ends them.

No process outlives the benchmark, unless that is killed with SIGKILL.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from bench.work import Outcome, Work

ROOT = pathlib.Path(__file__).parents[1]
CPUCLOCK_SCHED = 2
READY = b"GET %b HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process in nanosecond resolution, including threads that have ended.

    The clock is that of clock_getcpuclockid(3), which Python lacks.
    """
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def rss_mb(pid: int, row: str = "VmRSS") -> float:
    """Returns the resident memory of a process in MB; with the row VmHWM, its peak."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(row))


def children(pid: int) -> list[int]:
    """Returns the process ids of the direct children."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(number) for number in (task / "children").read_text().split()]
    return found


def family(pid: int) -> list[int]:
    """Returns the process ids of a process and all its descendants."""
    return [pid, *(member for child in children(pid) for member in family(child))]


class CpuTimes:
    """Measures the CPU time of named processes."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: cpu_s(pid) for name, pid in pids.items()}

    def since(self) -> dict[str, float]:
        """Returns the CPU seconds of each process since this object was created."""
        return {name: cpu_s(pid) - self._before[name] for name, pid in self._pids.items()}


class Worker:
    """A process that runs a module of this package, and answers lines of JSON with lines of JSON.

    It is a contestant or the load. It first writes {"ready": true}, and then answers one question at a time.
    """

    def __init__(self, module: str, *argv: str) -> None:
        command = [sys.executable, "-m", f"bench.{module}", *argv]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        atexit.register(self.close)
        self._answer()

    def ask(self, question: dict[str, object]) -> dict[str, object]:
        """Asks a question and returns the answer. Ends the benchmark if the process has died."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def run(self, work: Work, **more: object) -> Outcome:
        """Sends a Work to the process, and returns the outcome."""
        return Outcome(**self.ask({**asdict(work), **more}))  # type: ignore[arg-type]

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args[2]} ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        _ended(self._process)


def _ended(process: subprocess.Popen) -> None:
    """Waits until a process ends, and kills it after 10 s."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answering(function) -> None:
    """Answers the questions of a Worker with a function, until the input ends. Runs in the worker's process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries must not get into the answers
    print('{"ready": true}', file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(function(json.loads(line))), file=out, flush=True)


class Server:
    """An HTTP server in processes of its own on this machine. `began` is perf_counter() at its start."""

    def __init__(self, command: Sequence[str], port: int, ready: str = "/health", timeout_s: float = 600.0) -> None:
        self.port = port
        self.began = time.perf_counter()
        self._process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=sys.stderr)
        self.pid = self._process.pid
        atexit.register(self.close)
        self._await(ready, timeout_s)

    @property
    def pids(self) -> dict[str, int]:
        """The started process and all its descendants, the heaviest first."""
        inner = sorted(family(self.pid)[1:], key=cpu_s, reverse=True)
        names = ("front", "engine", *(f"helper {number}" for number in range(1, len(inner))))
        return dict(zip(names, (self.pid, *inner), strict=False))

    def _await(self, path: str, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise SystemExit(f"the server ended with status {self._process.returncode} before it was ready")
            if get(self.port, path) == 200:
                return
            time.sleep(0.05)
        self.close()
        raise SystemExit(f"the server was not ready after {timeout_s:g} s")

    def close(self) -> None:
        """Terminates the server, and kills it after 10 s."""
        atexit.unregister(self.close)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)  # some servers are stopped while others work
        self._process.terminate()
        _ended(self._process)


def get(port: int, path: str) -> int:
    """Returns the status of a GET request, 0 if there is no response."""
    with contextlib.suppress(OSError, ValueError), socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(READY % path.encode())
        return int(sock.recv(64)[9:12])
    return 0


def lean_ovms(options: Sequence[str]) -> Server:
    """Starts the server and waits until it is ready."""
    port = free_port()
    listen = ["--rest_port", str(port), "--rest_bind_address", "127.0.0.1"]
    quiet = ["--access_log", "false", "--log_level", "WARNING"]
    return Server([sys.executable, "-m", "lean_ovms", *listen, *quiet, *options], port, "/v2/health/ready")


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def closing(*things) -> Iterator[None]:
    """Closes all arguments at the end of the block, in reverse order."""
    with contextlib.ExitStack() as stack:
        for thing in things:
            stack.callback(thing.close)
        yield
