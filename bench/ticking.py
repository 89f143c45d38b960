"""Runs the server with a timer in its event loop that fires every millisecond or two. A long pause is a stall.

python -m bench.ticking [options of the server] answers each line of input with the seconds between all ticks since the
last line, and the CPU seconds of all its threads in the same intervals, which do not depend on the load of the machine.

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

from lean_ovms.cli.arguments import parse
from lean_ovms.observability import logging
from lean_ovms.server import run
from lean_ovms.util.concurrency import SWITCH_INTERVAL_S

TICK_S = 0.001
LATE_S = 0.005


class Ticker:
    """Records the intervals between its ticks. uvloop's timers count in whole milliseconds."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.cpu: list[float] = []
        self._last = self._last_cpu = 0.0
        self._late_s = 0.0
        if "STALL_STACKS" in os.environ:
            self._stacks = open(os.environ["STALL_STACKS"], "a")  # noqa: SIM115 - as long as the process
            faulthandler.register(signal.SIGPROF, self._stacks, all_threads=True)
            self._late_s = LATE_S

    def start(self) -> None:
        """Starts the timer."""
        self._last, self._last_cpu = time.perf_counter(), time.process_time()
        self._tick(asyncio.get_running_loop())

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        self.pauses.append(now - self._last)
        self.cpu.append(min(cpu - self._last_cpu, now - self._last))
        self._last, self._last_cpu = now, cpu
        if self._late_s:
            signal.setitimer(signal.ITIMER_PROF, self._late_s)
        loop.call_later(TICK_S, self._tick, loop)


async def main(argv: list[str]) -> None:
    """Runs the server and the timer."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ticker = Ticker()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as run.run does
    app = run.build(parse(argv, {}))
    serving = asyncio.create_task(run.serve(app))
    while not (app.registry.models and all(model.ready for model in app.registry.models.values())):
        await asyncio.sleep(0.02)
        if serving.done():
            serving.result()
    ticker.start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print('{"ready": true}', file=out, flush=True)
    while await reader.readline():
        print(json.dumps({"pauses": ticker.pauses, "cpu": ticker.cpu}), file=out, flush=True)
        ticker.pauses, ticker.cpu = [], []
    serving.cancel()
    await asyncio.wait([serving])


if __name__ == "__main__":
    logging.setup("WARNING")
    uvloop.run(main(sys.argv[1:]))
