"""Runs the server with a timer in its event loop that fires every millisecond or two. A long pause is a stall.

python -m bench.ticking [options of the server] answers each line of input with the seconds between all ticks since the
last line, and the CPU seconds of all its threads in the same intervals, which do not depend on the load of the machine.
The first line starts the timer. With the single word "control" in place of the options an empty event loop runs, whose
pauses are caused by the machine.

If the environment variable STALL_STACKS names a file, the stacks of all threads are appended to it when the process has
used LATE_S of CPU time without a tick. A signal handler in C does so without waiting for Python's interpreter lock, so
the stacks show the call that holds the lock.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import time

import uvloop

from lean_ovms.cli.main import main
from lean_ovms.server import run

TICK_S = 0.001
LATE_S = 0.005


class Clock:
    """Records the intervals between its ticks. uvloop's timers count in whole milliseconds."""

    def __init__(self) -> None:
        self._pauses: list[float] = []
        self._cpu: list[float] = []
        self._last = self._last_cpu = 0.0
        self._late_s = 0.0
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # the output of libraries must not get into the answers
        if "STALL_STACKS" in os.environ:
            self._stacks = open(os.environ["STALL_STACKS"], "a")  # noqa: SIM115 - as long as the process
            faulthandler.register(signal.SIGPROF, self._stacks, all_threads=True)
            self._late_s = LATE_S

    async def answer(self) -> None:
        """Answers each line of input, and stops the process at the end of the input."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print('{"ready": true}', file=self._out, flush=True)
        while await reader.readline():
            if not self._last:
                self._last, self._last_cpu = time.perf_counter(), time.process_time()
                self._tick(loop)
            print(json.dumps({"pauses": self._pauses, "cpu": self._cpu}), file=self._out, flush=True)
            self._pauses, self._cpu = [], []
        os.kill(os.getpid(), signal.SIGTERM)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        self._pauses.append(now - self._last)
        self._cpu.append(min(cpu - self._last_cpu, now - self._last))
        self._last, self._last_cpu = now, cpu
        if self._late_s:
            signal.setitimer(signal.ITIMER_PROF, self._late_s)
        loop.call_later(TICK_S, self._tick, loop)


def serve(clock: Clock) -> None:
    """Runs the server as its command line does. The clock answers once the models are loaded."""
    until_ready = run.load

    async def load(app: run.App) -> None:
        await until_ready(app)
        clock.task = asyncio.create_task(clock.answer())  # type: ignore[attr-defined]

    run.load = load
    main()


if __name__ == "__main__":
    uvloop.run(Clock().answer()) if sys.argv[1:] == ["control"] else serve(Clock())
