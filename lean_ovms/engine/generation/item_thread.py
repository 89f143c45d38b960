"""A thread that works during the steps of the loop, item by item."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class ItemThread(Generic[T]):
    """Handles items in their order; sleeps otherwise. Started with the first item."""

    def __init__(
        self, name: str, handle: Callable[[T], None], idle_s: float, on_idle: Callable[[], object] | None
    ) -> None:
        """on_idle: called after idle_s seconds without an item."""
        self._name, self._handle, self._idle_s, self._on_idle = name, handle, idle_s, on_idle
        self._items: SimpleQueue[T] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, item: T) -> None:
        self._items.put(item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        timeout_s: float | None = self._idle_s
        while True:
            try:
                item = self._items.get(timeout=timeout_s)
            except Empty:
                if self._on_idle is not None:
                    self._on_idle()
                timeout_s = None
                continue
            timeout_s = self._idle_s
            self._handle(item)
