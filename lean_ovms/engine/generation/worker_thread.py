"""Threads of the engine process: one that works through a queue of items, and one for a single piece of work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from ...errors import EngineFailure, RequestError
from ...util.round_robin import RoundRobin
from ..errors import last_line

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class WorkerThread(Generic[T, R]):
    """A queue of items, and a thread that works on one item at a time.

    Everything except the work itself runs in the thread of the engine's loop, and never blocks. `busy` says whether the
    thread has an item.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[T], R],
        wake: Callable[[], None],
        failure: str,
        *,
        wanted: Callable[[T], bool] = lambda item: True,
        idle_s: float | None = None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        """Creates an empty queue. The first item starts the thread.

        Args:
            name: The name of the thread.
            work: Returns the result of an item; called in the thread.
            wake: Wakes up the engine's loop; called from the thread.
            failure: The message for the client if `work` raises something other than a RequestError; "{}" stands for
                the exception's message.
            wanted: Returns whether an item is still needed; called before the work on it begins.
            idle_s: The seconds without an item after which on_idle is called; None for never.
            on_idle: Called in the thread after idle_s seconds without an item.
        """
        self.busy = False
        self._name, self._work, self._wake, self._failure = name, work, wake, failure
        self._wanted, self._idle_s, self._on_idle = wanted, idle_s, on_idle
        self._turns: RoundRobin[T] = RoundRobin()
        self._begun: SimpleQueue[T] = SimpleQueue()
        self._done: SimpleQueue[tuple[T, R | RequestError]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def queued(self, client: str) -> int:
        """Returns the number of a client's items that are not begun."""
        return self._turns.of(client)

    def add(self, client: str, item: T) -> None:
        """Queues an item; `start` passes it to the thread."""
        self._turns.add(client, item)

    def start(self) -> None:
        """Passes the next item that is still needed to the thread, if the thread is free."""
        while not self.busy and (item := self._turns.next()) is not None:
            if self._wanted(item):
                self.busy = True
                self._begun.put(item)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def poll(self) -> Iterator[tuple[T, R | RequestError]]:
        """Yields the finished items, each with the result or the exception of the work."""
        while not self._done.empty():
            self.busy = False
            yield self._done.get()

    def _run(self) -> None:
        while True:
            try:
                item = self._begun.get(timeout=self._idle_s)
            except Empty:
                self._on_idle()
                item = self._begun.get()
            result: R | RequestError
            try:
                result = self._work(item)
            except RequestError as error:
                result = error
            except Exception as error:  # whatever it is, the waiting request must get an error
                log.exception("%s failed", self._name)
                result = EngineFailure(self._failure.format(last_line(error)))
            self._done.put((item, result))
            self._wake()


def in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Runs work, such as compiling a network, in a new thread with the caller's context; returns its future."""
    pool = ThreadPoolExecutor(1, name)
    future = pool.submit(copy_context().run, work)
    pool.shutdown(wait=False)
    return future
