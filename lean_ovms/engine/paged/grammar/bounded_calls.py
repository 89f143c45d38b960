"""Calls of a library that may take for ever, in threads that are left behind when one does.

What such a call computes in C++ cannot be interrupted, but needs no interpreter's lock. So the step waits for a while
only, and goes on; the thread ends after its call.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

Call = Callable[[], object]
LIMIT_S = 0.25
"""CPU time that one call may take; its wall time may be WALL_FACTOR times as long, for a thread that gets no CPU."""
WALL_FACTOR = 40
CHECK_EVERY_S = 0.02


class Calls:
    """Calls that one thread makes one after the other, until someone gives up on one that takes too long.

    errors: what each call raised; None for one that raised nothing.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._at = 0
        self._began = math.inf  # CPU time of the thread, when the call began
        self._given_up = False
        self.errors: list[Exception | None] = [None] * len(calls)
        self.done = threading.Event()

    def run(self) -> bool:
        """Makes all calls, in their thread; False if the thread was given up."""
        for place, call in enumerate(self._calls):
            with self._lock:
                if self._given_up:
                    return False
                self._at, self._began = place, time.thread_time()
            try:
                call()
            except Exception as error:  # of the library: of this call alone
                self.errors[place] = error
        with self._lock:
            if not self._given_up:
                self.done.set()
            return not self._given_up

    def used_s(self, clock: int) -> tuple[int, float]:
        """Returns the place of the running call and its CPU time; 0 before the first. clock: the thread's."""
        with self._lock:
            return self._at, max(0.0, time.clock_gettime(clock) - self._began)

    def give_up(self, place: int) -> Sequence[Call] | None:
        """Gives up on a call: returns those after it, for another thread; None if it has returned meanwhile."""
        with self._lock:
            if self._at != place or self.done.is_set():
                return None
            self._given_up = True
            return self._calls[place + 1 :]


class CallThread:
    """A thread that runs calls, and is replaced when one takes too long. One user.

    left: threads that were left behind and still compute.
    """

    def __init__(self, name: str, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self._name = name
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[Calls | None] = SimpleQueue()
        self._left: list[threading.Thread] = []

    @property
    def left(self) -> int:
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    def start(self, calls: Sequence[Call]) -> Calls:
        """Starts the calls; `finish` has to follow."""
        if self._thread is None:
            self._queue = SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        batch = Calls(calls)
        self._queue.put(batch)
        return batch

    def finish(self, batch: Calls) -> list[Exception | None]:
        """Waits for the calls and returns the error of each: a TimeoutError for one that took too long.

        Such a call still runs, and may still change what it computes.
        """
        errors: list[Exception | None] = []
        while (slow := self._wait(batch)) is not None:
            place, rest = slow
            errors += [*batch.errors[:place], TimeoutError("it takes too long")]
            batch = self.start(rest)
        return errors + batch.errors

    def _wait(self, batch: Calls) -> tuple[int, Sequence[Call]] | None:
        """Waits for a batch: None when it is done, else the place of a call that took too long and the calls after."""
        thread = self._thread
        assert thread is not None
        assert thread.ident is not None
        clock, seen, deadline = time.pthread_getcpuclockid(thread.ident), -1, math.inf
        while not batch.done.wait(CHECK_EVERY_S):
            place, used_s = batch.used_s(clock)
            if place != seen:
                seen, deadline = place, time.monotonic() + WALL_FACTOR * self.limit_s
            if used_s < self.limit_s and time.monotonic() < deadline:
                continue
            rest = batch.give_up(place)
            if rest is not None:
                self._queue.put(None)
                self._left.append(thread)
                self._thread = None
                return place, rest
        return None


def _serve(queue: SimpleQueue[Calls | None]) -> None:
    while (batch := queue.get()) is not None and batch.run():
        pass
