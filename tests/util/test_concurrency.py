"""Offload: what a failed piece of work read is freed at once."""

from __future__ import annotations

import contextlib
import gc
import weakref

from lean_ovms.util.concurrency import Offload


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
