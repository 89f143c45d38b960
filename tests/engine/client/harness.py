"""For tests of the engine client: engines on the fake child, and an event loop with a fast clock."""

import asyncio
import contextlib
import pathlib
import selectors
import sys
import time

from lean_ovms.config import Config
from lean_ovms.engine.client.engine import EngineClient
from lean_ovms.types import SamplingParams
from lean_ovms.types.engine import EngineRequest
from tests.streams import pieces

PATIENT_S = 300.0
"""Real seconds to wait for something that must happen, because the machine may be slow and busy."""
FAKE = pathlib.Path(__file__).with_name("fake_child.py")


def command(part="ok"):
    """Returns the command of the fake child. -S makes it start faster, and it needs no site packages."""
    return [sys.executable, "-S", str(FAKE), part]


@contextlib.asynccontextmanager
async def running(part="ok", **options):
    """Yields a started engine on the fake child, and stops it at the end.

    The time for loading is not limited unless options say so: on a fast loop, 600 s are a few real seconds, and a child
    may take longer.
    """
    engine = EngineClient(Config(**{"engine_load_timeout_s": 1e9, **options}), command(part))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


async def submit(engine, prompt, *, want_tokens=False, add_special_tokens=True, timeout_s=0.0, images=(), **sampling):
    request = EngineRequest(
        prompt=prompt,
        sampling=SamplingParams(**sampling),
        add_special_tokens=add_special_tokens,
        want_tokens=want_tokens,
        timeout_s=timeout_s,
        images=images,
    )
    return await engine.submit(request)


async def read(reply):
    """Reads a reply to its end: {index: (tokens, logprobs, reason)}. Raises the error with which it ends."""
    seen = {}
    async for found in pieces(reply):
        for record in found:
            tokens, logprobs, reason = seen.get(record.index, ([], [], None))
            assert reason is None, "something after the final"
            seen[record.index] = (tokens + record.tokens, logprobs + (record.logprobs or []), record.reason)
    return seen


async def until(condition, timeout_s=PATIENT_S):
    """Waits for something that another process does, independent of the loop's clock."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.002)


class FastSelector(selectors.DefaultSelector):
    """Waits for a fraction of the requested time."""

    speed = 1.0

    def select(self, timeout=None):
        return super().select(timeout / self.speed if timeout else timeout)


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop with real I/O, whose timers are `speed` times faster: at 1000, a back-off of 30 s takes 30 ms."""

    def __init__(self, speed):
        selector = FastSelector()
        selector.speed = speed
        self.speed = speed
        super().__init__(selector)

    def time(self):
        return super().time() * self.speed


def run_fast(main, speed=100.0):
    """Runs a coroutine function on a fast loop."""
    loop = FastLoop(speed)
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
