"""Calls that may take forever, in a thread that is abandoned if one does.

The library's computations cannot be interrupted, but do not need the interpreter lock. So a step waits only for a while
and goes on; the abandoned thread ends after its call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue

Item = tuple[Callable[[], None], "Future[None]"]
WALL_FACTOR = 40
"""The wall time of a call as a multiple of its CPU limit, for a thread that gets no CPU or waits for another."""
CHECK_EVERY_S = 0.02


class CallThread:
    """A thread that makes calls one after another, and is replaced if one takes too long. It has one user."""

    def __init__(self, name: str) -> None:
        """Creates the object. The first call starts the thread."""
        self._name = name
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._left: list[threading.Thread] = []

    @property
    def left(self) -> int:
        """The number of abandoned threads that are still computing."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    def run(self, call: Callable[[], None], limit_s: float) -> None:
        """Makes a call in the thread, and waits for it. Raises TimeoutError, and any exception of the call.

        A call that takes more than `limit_s` of CPU time continues in the background, and may still change data.
        """
        if self._thread is None:
            self._queue = SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        thread, result = self._thread, Future[None]()
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        used, deadline = time.clock_gettime(clock), time.monotonic() + WALL_FACTOR * limit_s
        self._queue.put((call, result))
        while not wait([result], CHECK_EVERY_S).done:
            if time.clock_gettime(clock) - used > limit_s or time.monotonic() > deadline:
                self._queue.put(None)
                self._left.append(thread)
                self._thread = None
                raise TimeoutError("it took too long")
        result.result()


def _serve(queue: SimpleQueue[Item | None]) -> None:
    while (item := queue.get()) is not None:
        call, result = item
        try:
            call()
        except Exception as error:  # any error of the library ends only this call
            result.set_exception(error)
        else:
            result.set_result(None)
        del item, call, result  # frees a matcher together with its text, not at the next call
