"""Measures the pauses of an event loop from within, with a timer that fires every millisecond or two.

    python -m tools.soaking.clock FILE [options of the server]

runs the server with such a timer in its event loop. With the single word "control" in place of the options it runs an
empty event loop, whose pauses are caused by the machine. FILE is shared memory with two numbers: the longest pause in
seconds since the last reset, and the number of pauses longer than LONG_S.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path

TICK_S = 0.001
LONG_S = 0.05
FORM = struct.Struct("dd")


class Pauses:
    """The numbers in the shared file."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(FORM.size))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), FORM.size)

    def add(self, pause_s: float) -> None:
        """Records a pause."""
        longest, count = FORM.unpack(self._memory)
        if pause_s > longest or pause_s > LONG_S:
            FORM.pack_into(self._memory, 0, max(longest, pause_s), count + (pause_s > LONG_S))

    def take(self) -> tuple[float, int]:
        """Returns the longest pause in seconds since the last call, and the number of long pauses since the start."""
        longest, count = FORM.unpack(self._memory)
        FORM.pack_into(self._memory, 0, 0.0, count)
        return longest, int(count)


class Clock:
    """A timer in the running event loop."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._loop = asyncio.get_running_loop()
        self._last = time.perf_counter()

    def tick(self) -> None:
        """Records the time since the last tick, and schedules the next tick."""
        now = time.perf_counter()
        self._pauses.add(now - self._last)
        self._last = now
        self._loop.call_later(TICK_S, self.tick)


async def _control(pauses: Pauses) -> None:
    Clock(pauses).tick()
    await asyncio.Event().wait()


def main(argv: list[str]) -> int:
    """Runs the server or the empty event loop."""
    pauses = Pauses(Path(argv[0]))
    if argv[1:] == ["control"]:
        import uvloop

        uvloop.run(_control(pauses))
        return 0
    from lean_ovms.cli.main import main as serve
    from lean_ovms.server import run

    until_ready = run.load

    async def load(app: run.App) -> None:
        await until_ready(app)
        Clock(pauses).tick()  # after the start, which is not measured

    run.load = load
    sys.argv[1:] = argv[1:]
    serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
