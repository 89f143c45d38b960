"""Threads of the engine process: for many items during the steps of the loop, and for one piece of work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from ...errors import EngineFailure, RequestError
from ...util.round_robin import RoundRobin
from ..errors import last_line

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class WorkerThread(Generic[T, R]):
    """The items that wait, the thread that works on one of them, and what it returned of others.

    All but the work itself belongs to the thread of the engine's loop and never blocks. `busy` says whether the thread
    has an item.
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
        """Begins without items; the first one starts the thread.

        Args:
            name: The name of the thread.
            work: Returns the result of an item; it is called in the thread.
            wake: Ends the wait of the engine's loop; it is called from the thread.
            failure: What a client is told of an item whose work raised something that is no RequestError, with "{}" for
                the message of that.
            wanted: Returns whether an item is still wanted, before the work on it begins.
            idle_s: The seconds without an item after which on_idle is called; None: it is never called.
            on_idle: Is called in the thread.
        """
        self.busy = False
        self._name, self._work, self._wake, self._failure = name, work, wake, failure
        self._wanted, self._idle_s, self._on_idle = wanted, idle_s, on_idle
        self._turns: RoundRobin[T] = RoundRobin()
        self._begun: SimpleQueue[T] = SimpleQueue()
        self._done: SimpleQueue[tuple[T, R | RequestError]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def queued(self, client: str) -> int:
        """Returns how many items of a client are not begun."""
        return self._turns.of(client)

    def add(self, client: str, item: T) -> None:
        """Queues an item, which `start` begins."""
        self._turns.add(client, item)

    def start(self) -> None:
        """Gives the thread the next item that is wanted, if it has none."""
        while not self.busy and (item := self._turns.next()) is not None:
            if self._wanted(item):
                self.busy = True
                self._begun.put(item)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def poll(self) -> Iterator[tuple[T, R | RequestError]]:
        """Yields the items that are done, with what the work returned or raised."""
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
    """Runs one piece of work, such as compiling a network, in a thread that ends with it.

    Args:
        name: The name of the thread.
        work: The piece of work.

    Returns:
        A future with what it returns or raises.
    """
    pool = ThreadPoolExecutor(1, name)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future
