"""One piece of work, such as compiling a network, in a thread of its own that ends with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Returns what work returns or raises, later. name: of the thread."""
    pool = ThreadPoolExecutor(1, name)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future
