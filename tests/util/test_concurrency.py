"""Offload: one inline budget per request, turns in the thread, and the input of failed work is freed at once.
InFlight: a waiter for the last use continues."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest

from lean_ovms.util.concurrency import (
    INLINE_S,
    InFlight,
    InlineTime,
    Offload,
    TooSlowInline,
    inline_left_s,
    inline_time,
)


class Tree:
    """A parsed body."""


def test_the_input_of_failed_work_is_freed_without_the_collector() -> None:
    """The error's traceback once referred to the future that held the error, so a body of 30 MB stayed for minutes.

    This needs asyncio's own loop, because pytest-asyncio's tasks keep errors alive in Python 3.10.
    """
    offload = Offload(100)
    trees: list[weakref.ref[Tree]] = []

    def work() -> None:
        tree = Tree()
        trees.append(weakref.ref(tree))
        raise ValueError(tree)

    async def fail() -> None:
        with contextlib.suppress(ValueError):
            await offload.run(10, work)
        await offload.run(10, lambda: None)  # afterwards the worker no longer holds the failed work
        assert trees[0]() is None

    gc.disable()
    try:
        asyncio.run(fail())
    finally:
        gc.enable()
        offload.close()


async def test_the_short_work_of_a_request_is_done_inline_until_its_time_is_over() -> None:
    offload, now, threads = Offload(100), 0.0, list[str]()

    def work() -> None:
        nonlocal now
        now += INLINE_S / 4
        threads.append(threading.current_thread().name)

    token = inline_time.set(InlineTime(clock=lambda: now))
    try:
        for _ in range(10):
            await offload.run(1, work, inline_below=2)
            await asyncio.sleep(0)
    finally:
        inline_time.reset(token)
    assert [name.startswith("offload") for name in threads] == [False] * 4 + [True] * 6
    await offload.run(1, work, inline_below=2)  # without a request, it has a budget of its own
    assert not threads[-1].startswith("offload")
    offload.close()


async def test_requests_of_one_turn_of_the_loop_share_its_time() -> None:
    offload, now, threads = Offload(100), 0.0, list[str]()

    def work() -> None:
        nonlocal now
        now += INLINE_S / 2
        threads.append(threading.current_thread().name)

    def request() -> asyncio.Task[None]:
        inline_time.set(InlineTime(clock=lambda: now))
        return asyncio.ensure_future(offload.run(1, work, inline_below=2))

    for _ in range(2):
        await asyncio.wait([request() for _ in range(5)])
    inline_time.set(None)
    assert sorted(name.startswith("offload") for name in threads) == [False] * 4 + [True] * 6
    offload.close()


async def test_work_that_is_too_slow_inline_starts_again_in_the_thread() -> None:
    offload, seen = Offload(100), list["float | None"]()

    def work() -> str:
        seen.append(inline_left_s.get())
        if inline_left_s.get() is not None:
            raise TooSlowInline
        return "done"

    assert await offload.run(1, work, inline_below=2) == "done"
    assert seen == [INLINE_S, None]
    offload.close()


async def test_clients_and_their_requests_take_turns_in_the_thread() -> None:
    offload, done = Offload(100), list[str]()
    busy = threading.Event()
    waiting = [asyncio.ensure_future(offload.run(1, busy.wait))]
    for client, request, count in (("a", "a1", 3), ("a", "a2", 2), ("b", "b1", 2)):
        inline_time.set(InlineTime(client))
        for number in range(count):
            name = f"{request}.{number}"
            waiting.append(asyncio.ensure_future(offload.run(1, lambda name=name: done.append(name))))
    inline_time.set(None)
    await asyncio.sleep(0)
    waiting[2].cancel()  # a1.1 is in the queue
    await asyncio.sleep(0)
    busy.set()
    await asyncio.wait(waiting)
    assert done == ["a1.0", "b1.0", "a2.0", "b1.1", "a2.1", "a1.2"]
    offload.close()


async def test_work_that_is_queued_at_the_end_is_cancelled() -> None:
    offload, busy = Offload(100), threading.Event()
    first, second = (asyncio.ensure_future(offload.run(1, busy.wait)) for _ in range(2))
    await asyncio.sleep(0)
    offload.close()
    busy.set()
    assert await first
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_all_who_wait_for_the_last_use_go_on_and_later_ones_wait_for_theirs() -> None:
    uses = InFlight()
    await uses.drained()
    with uses:
        waiting = [asyncio.ensure_future(uses.drained()) for _ in range(2)]
        with uses:
            await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
    uses.add()  # before the waiters have run
    await asyncio.gather(*waiting)
    again = asyncio.ensure_future(uses.drained())
    await asyncio.sleep(0)
    assert not again.done()
    uses.remove()
    await again
