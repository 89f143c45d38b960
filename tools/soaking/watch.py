"""Sample the server from outside while it runs: memory, descriptors, KV cache, queue; and plot the samples."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.soaking.client import Connection, Manner

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Sample:
    """The server at one moment. t: seconds since the start of the watch. Memory in MB. live_ms: of a liveness probe."""

    t: float
    front_mb: float = 0.0
    engine_mb: float = 0.0
    descriptors: int = 0
    running: float = 0.0
    waiting: float = 0.0
    in_flight: float = 0.0
    kv: float = 0.0
    live_ms: float = 0.0
    ready: bool = False


class Watch:
    """Takes a sample every so often."""

    def __init__(self, port: int, pid: int) -> None:
        self.samples: list[Sample] = []
        self.began = time.monotonic()
        self._pid = pid
        self._line = Connection(port)
        self._number = 0

    async def run(self, every_s: float) -> None:
        """For ever."""
        while True:
            self.samples.append(await self.look())
            await asyncio.sleep(every_s)

    async def look(self) -> Sample:
        """One sample, now."""
        sample = Sample(round(time.monotonic() - self.began, 2))
        sample.front_mb = _memory_mb(self._pid)
        sample.engine_mb = sum(map(_memory_mb, engines(self._pid)))
        sample.descriptors = len(os.listdir(f"/proc/{self._pid}/fd"))
        began = time.monotonic()
        await self._get("/v2/health/live")
        sample.live_ms = round((time.monotonic() - began) * 1e3, 2)
        text = await self._get("/metrics")
        sample.running = _total(text, "vllm:num_requests_running")
        sample.waiting = _total(text, "vllm:num_requests_waiting")
        sample.in_flight = _total(text, "ovms_current_graphs")
        sample.kv = _total(text, "vllm:kv_cache_usage_perc")
        sample.ready = _total(text, "lean_ovms_engine_up") > 0
        return sample

    async def _get(self, path: str) -> str:
        self._number += 1
        seen = await self._line.ask("GET", path, None, f"watch-{self._number}", Manner(), 30)
        return seen.body.decode() if seen.status == 200 else ""

    async def post(self, path: str) -> None:
        """Ask for something to be done."""
        await self._line.ask("POST", path, {}, "watch", Manner(), 60)

    async def close(self) -> None:
        """Hang up."""
        await self._line.close()


def engines(pid: int) -> list[int]:
    """The engine children of a server, by their command lines."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if b"lean_ovms.engine\0" in command:
                found.append(int(child))
    return found


def _memory_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6
    except (OSError, IndexError):
        return 0.0


def _total(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", text, re.M))


def plot(samples: list[Sample], disturbances: list[tuple[float, str]], file: Path) -> None:
    """The samples as a PNG; needs matplotlib (the extra bench)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    minutes = [sample.t / 60 for sample in samples]
    rows = [asdict(sample) for sample in samples]
    panels = [
        ("memory, MB", {"front_mb": "front end", "engine_mb": "engines"}),
        ("KV cache in use", {"kv": "share"}),
        ("requests", {"in_flight": "in flight", "running": "running", "waiting": "waiting"}),
        ("descriptors", {"descriptors": "front end"}),
    ]
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, 8), sharex=True, constrained_layout=True)
    for axis, (title, lines) in zip(axes, panels, strict=True):
        for name, label in lines.items():
            axis.plot(minutes, [row[name] for row in rows], linewidth=0.8, label=label)
        for when, what in disturbances:
            axis.axvline(when / 60, color="red" if what == "kill" else "green", linewidth=0.5, alpha=0.4)
        axis.set_ylabel(title)
        axis.legend(loc="upper left", fontsize=7)
    axes[-1].set_xlabel("minutes; red: an engine was killed, green: the configuration was reloaded")
    figure.savefig(file, dpi=70)
    pyplot.close(figure)
    with Image.open(file) as image:
        smaller = image.convert("RGB").quantize(32)
    smaller.save(file, optimize=True)  # a third of the size
