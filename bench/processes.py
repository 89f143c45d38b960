"""Processes under test: start them, wait until they are ready, read their CPU and memory from the kernel, end them.

None outlives the benchmark, however that ends (but for SIGKILL).
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
    """CPU seconds of a process, exact to the nanosecond; threads that have ended count.

    The clock is the one of clock_getcpuclockid(3), which Python does not have.
    """
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def rss_mb(pid: int, row: str = "VmRSS") -> float:
    """Resident memory. row: VmHWM for the peak, Pss where pages are shared."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(row))


def children(pid: int) -> list[int]:
    """Process ids of the direct children."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(number) for number in (task / "children").read_text().split()]
    return found


def family(pid: int) -> list[int]:
    """The process and all that it has started."""
    return [pid, *(member for child in children(pid) for member in family(child))]


class CpuTimes:
    """CPU seconds of named processes between two readings."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: cpu_s(pid) for name, pid in pids.items()}

    def since(self) -> dict[str, float]:
        """By name, since this object was made."""
        return {name: cpu_s(pid) - self._before[name] for name, pid in self._pids.items()}


class Worker:
    """A process of this package that answers lines of JSON with lines of JSON: a contestant, or the load.

    The process says {"ready": true} first. One question at a time.
    """

    def __init__(self, module: str, *argv: str) -> None:
        command = [sys.executable, "-m", f"bench.{module}", *argv]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        atexit.register(self.close)
        self._answer()

    def ask(self, question: dict[str, object]) -> dict[str, object]:
        """Its answer. Ends the benchmark if it has died."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def run(self, work: Work, **more: object) -> Outcome:
        """Do the work once."""
        return Outcome(**self.ask({**asdict(work), **more}))  # type: ignore[arg-type]

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args[2]} ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        _ended(self._process)


def _ended(process: subprocess.Popen) -> None:
    """Wait for its end; kill it after 10 s."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answering(function) -> None:
    """The other side of Worker: hand each question to the function, until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get into the answers
    print('{"ready": true}', file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(function(json.loads(line))), file=out, flush=True)


class Server:
    """An HTTP server in processes of its own, listening on this machine. pids: by role, for CPU times.

    began: perf_counter() at its start.
    """

    def __init__(self, command: Sequence[str], port: int, ready: str = "/health", timeout_s: float = 600.0) -> None:
        self.port = port
        self.began = time.perf_counter()
        self._process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=sys.stderr)
        self.pid = self._process.pid
        atexit.register(self.close)
        self._await(ready, timeout_s)

    @property
    def pids(self) -> dict[str, int]:
        """The process that was started, and the heaviest child of it if there is one."""
        return dict(zip(("front", "engine"), self.all_pids.values(), strict=False))

    @property
    def all_pids(self) -> dict[str, int]:
        """The process that was started, and all that it has started, the heaviest first."""
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
        """Terminate it; kill it after 10 s."""
        atexit.unregister(self.close)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)  # some are stopped while others work
        self._process.terminate()
        _ended(self._process)


def get(port: int, path: str) -> int:
    """The status of a GET, 0 without a response."""
    with contextlib.suppress(OSError, ValueError), socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(READY % path.encode())
        return int(sock.recv(64)[9:12])
    return 0


def lean_ovms(options: Sequence[str], module: Sequence[str] = ("lean_ovms",)) -> Server:
    """The real server, ready to serve; module: what to start instead of it with the same options."""
    port = free_port()
    listen = ["--rest_port", str(port), "--rest_bind_address", "127.0.0.1"]
    quiet = ["--access_log", "false", "--log_level", "WARNING"]
    return Server([sys.executable, "-m", *module, *listen, *quiet, *options], port, "/v2/health/ready")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def closing(*things) -> Iterator[None]:
    """Close them all at the end, whatever happened."""
    with contextlib.ExitStack() as stack:
        for thing in things:
            stack.callback(thing.close)
        yield
