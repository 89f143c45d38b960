"""Samples the running server from outside: memory, file descriptors, KV cache and queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from asyncio.subprocess import Process
from dataclasses import dataclass
from pathlib import Path

from bench.processes import children, rss_mb
from tools.soaking.client import Connection, Manner

LONG_S = 0.05
"""Pauses of an event loop longer than this are counted."""


@dataclass
class Sample:
    """The state of the server at one moment. Memory is in MB."""

    t: float
    """Seconds since the start of the watch."""
    front_mb: float = 0.0
    engine_mb: float = 0.0
    descriptors: int = 0
    running: float = 0.0
    waiting: float = 0.0
    in_flight: float = 0.0
    kv: float = 0.0
    live_ms: float = 0.0
    """The time that a liveness probe took."""
    loop_ms: float = 0.0
    """The longest pause of the server's event loop since the last sample."""
    empty_loop_ms: float = 0.0
    """The longest pause of an empty event loop in another process since the last sample."""
    long_pauses: int = 0
    """Pauses of the server's event loop of more than 50 ms, since the start."""
    empty_long_pauses: int = 0
    """Pauses of the empty event loop of more than 50 ms, since the start."""


class Watch:
    """Takes samples at regular intervals."""

    def __init__(self, port: int, server: Process, control: Process) -> None:
        self.samples: list[Sample] = []
        self.over = False
        self.began = time.monotonic()
        self._pid = server.pid
        self._line = Connection(port)
        self._number = 0
        self._loops = server, control
        self._long = [0, 0]

    async def run(self, every_s: float) -> None:
        """Takes samples until `over` is set. Cancelling it would leave half an answer on the connection."""
        while not self.over:
            self.samples.append(await self.look())
            await asyncio.sleep(every_s)

    async def look(self) -> Sample:
        """Takes and returns one sample."""
        sample = Sample(round(time.monotonic() - self.began, 2))
        sample.front_mb = rss_mb(self._pid)
        for engine in engines(self._pid):
            with contextlib.suppress(OSError, StopIteration):  # it may just have been killed
                sample.engine_mb += rss_mb(engine)
        sample.descriptors = len(os.listdir(f"/proc/{self._pid}/fd"))
        began = time.monotonic()
        await self._get("/v2/health/live")
        sample.live_ms = round((time.monotonic() - began) * 1e3, 2)
        text = await self._get("/metrics")
        sample.running = _total(text, "vllm:num_requests_running")
        sample.waiting = _total(text, "vllm:num_requests_waiting")
        sample.in_flight = _total(text, "ovms_current_graphs")
        sample.kv = _total(text, "vllm:kv_cache_usage_perc")
        sample.loop_ms, sample.empty_loop_ms = [await self._longest(number) for number in range(2)]
        sample.long_pauses, sample.empty_long_pauses = self._long
        return sample

    async def _longest(self, number: int) -> float:
        """Returns the longest pause of a loop since the last call in ms, and counts the long ones (bench.ticking)."""
        process = self._loops[number]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        pauses = json.loads(await process.stdout.readline())["pauses"]
        self._long[number] += sum(pause > LONG_S for pause in pauses)
        return round(max(pauses, default=0.0) * 1e3, 2)

    async def _get(self, path: str) -> str:
        self._number += 1
        seen = await self._line.ask("GET", path, None, f"watch-{self._number}", Manner(), 30)
        return seen.body.decode() if seen.status == 200 else ""

    async def post(self, path: str) -> None:
        """Sends a POST request with an empty object."""
        await self._line.ask("POST", path, {}, "watch", Manner(), 60)

    async def close(self) -> None:
        """Closes the connection."""
        await self._line.close()


def engines(pid: int) -> list[int]:
    """Returns the process ids of a server's engine processes, which are found by their command lines."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            if b"lean_ovms.engine.worker\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def _total(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", text, re.M))
