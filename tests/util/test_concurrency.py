"""Offload: what a failed piece of work read is freed at once. InFlight: who waits for the last use goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

from lean_ovms.util.concurrency import InFlight, Offload


class Tree:
    """A parsed body."""


async def test_the_input_of_failed_work_is_freed_without_the_collector() -> None:
    """The error's traceback once referred to the future that held the error: a body of 30 MB stayed for minutes."""
    offload = Offload(100)
    trees: list[weakref.ref[Tree]] = []

    def work() -> None:
        tree = Tree()
        trees.append(weakref.ref(tree))
        raise ValueError(tree)

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await offload.run(10, work)
        await offload.run(10, lambda: None)  # the worker has put the failed work away
        assert trees[0]() is None
    finally:
        gc.enable()
        offload.close()


async def test_all_who_wait_for_the_last_use_go_on_and_later_ones_wait_for_theirs() -> None:
    uses = InFlight()
    await uses.drained()
    with uses:
        waiting = [asyncio.ensure_future(uses.drained()) for _ in range(2)]
        with uses:
            await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
    uses.add()  # before those who wait have run
    await asyncio.gather(*waiting)
    again = asyncio.ensure_future(uses.drained())
    await asyncio.sleep(0)
    assert not again.done()
    uses.remove()
    await again
