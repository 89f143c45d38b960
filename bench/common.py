"""What every benchmark needs: the header line, a server of its own, its processes' CPU time, quantiles, output."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass

from .client import Result, Spec

ROOT = pathlib.Path(__file__).parents[1]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def header(**facts: object) -> dict[str, object]:
    """Machine, CPU and versions; without them a number means nothing."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    packages = ("uvloop", "h11", "orjson", "openvino-genai")
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(),
        **versions,
        **facts,
    }


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def emit(as_json: bool, figures: dict[str, object]) -> None:
    """One line, for machines or for people."""
    if as_json:
        print(json.dumps(figures), flush=True)
        return
    name = str(figures.get("case", "#"))
    shown = [f"{key} {_show(value)}" for key, value in figures.items() if key != "case"]
    print(f"{name:<30}", "  ".join(shown), flush=True)


def _show(value: object) -> str:
    if isinstance(value, dict):
        return "/".join(f"{part:g}" for part in value.values()) or "-"
    return str(value)


@dataclass
class ServerUnderTest:
    """A running server: where it listens, and the process ids of its two halves."""

    port: int
    front_pid: int
    engine_pid: int

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds of front end and engine so far, user and system."""
        return cpu_s(self.front_pid), cpu_s(self.engine_pid)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its threads, in steps of 10 ms."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@contextlib.asynccontextmanager
async def server(*options: str) -> AsyncIterator[ServerUnderTest]:
    """The real server in a process of its own, ready to serve, on a free local port."""
    port = _free_port()
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", str(port), "--rest_bind_address", "127.0.0.1"]
    quiet = ["--access_log", "false", "--log_level", "WARNING"]
    process = await asyncio.create_subprocess_exec(*command, *quiet, *options, cwd=ROOT)
    try:
        await _ready(port, process)
        yield ServerUnderTest(port, process.pid, _child_of(process.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _child_of(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _ready(port: int, process: asyncio.subprocess.Process, timeout_s: float = 120.0) -> None:
    """Ask until it answers 200; looking too often would only slow the start."""
    for _ in range(int(timeout_s / 0.05)):
        if process.returncode is not None:
            raise SystemExit(f"the server ended with status {process.returncode} before it was ready")
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            line = await reader.readline()
            writer.close()
            if b" 200 " in line:
                return
        await asyncio.sleep(0.05)
    raise SystemExit(f"the server was not ready after {timeout_s:g} s")


async def load(spec: Spec) -> Result:
    """Run the client in a process of its own, so that its cost is not the server's."""
    command = [sys.executable, "-m", "bench.client", json.dumps(asdict(spec))]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise SystemExit("the benchmark's client failed")
    return Result(**json.loads(out))
