"""A limited amount that requests share, such as memory: who needs more than is left waits in order for a while."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..errors import Unavailable

MAX_WAIT_S = 30.0
"""The most seconds to wait for room in a budget; after that the request gets a 503 with Retry-After."""


class Budget:
    """A limited amount that is lent and returned; `used` is the amount on loan."""

    def __init__(
        self, most: int, most_waiting: int, refusal: str, code: str, on_idle: Callable[[], None] | None = None
    ) -> None:
        """Creates a budget of which nothing is lent.

        Args:
            most: The most that is lent at once. A larger amount is lent only if nothing else is.
            most_waiting: The most that may wait in total. A further request gets a 503 at once.
            refusal: The message of the 503.
            code: The code of the 503.
            on_idle: Called when everything has been returned.
        """
        self.used = 0
        self.waiting = 0
        self._most = most
        self._most_waiting = most_waiting
        self._refusal = refusal
        self._code = code
        self._on_idle = on_idle
        self._queue: deque[tuple[int, asyncio.Future[bool]]] = deque()

    async def acquire(self, amount: int) -> Lease:
        """Borrows an amount, waiting for room if necessary. Raises Unavailable."""
        amount = min(amount, self._most)
        if self._queue or self.used + amount > self._most:
            await self._wait(amount)
        else:
            self.used += amount
        return Lease(self, amount)

    async def _wait(self, amount: int) -> None:
        if self.waiting and self.waiting + amount > self._most_waiting:
            raise self._unavailable()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._queue.append((amount, turn))
        self.waiting += amount
        timer = loop.call_later(MAX_WAIT_S, self._end_wait, amount, turn)
        try:
            granted = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._end_wait(amount, turn)
            elif turn.result():  # the grant came in the same turn of the loop
                self.release(amount)
            raise
        finally:
            timer.cancel()
        if not granted:
            raise self._unavailable()

    def _end_wait(self, amount: int, turn: asyncio.Future[bool]) -> None:
        """Ends a wait without success, because of the time limit or because the client has left."""
        if (amount, turn) in self._queue:
            self._queue.remove((amount, turn))
            self.waiting -= amount
        if not turn.done():
            turn.set_result(False)
        self._grant()  # a smaller one behind it may fit

    def release(self, amount: int) -> None:
        self.used -= amount
        self._grant()
        if not self.used and amount and self._on_idle is not None:
            self._on_idle()

    def _grant(self) -> None:
        while self._queue and self.used + self._queue[0][0] <= self._most:
            amount, turn = self._queue.popleft()
            self.waiting -= amount
            if not turn.done():  # else its task has been cancelled, and has not run since
                self.used += amount
                turn.set_result(True)

    def _unavailable(self) -> Unavailable:
        return Unavailable(self._refusal, code=self._code)


class Lease:
    """The amount that one request has borrowed from a budget."""

    __slots__ = ("_amount", "_budget")

    def __init__(self, budget: Budget, amount: int) -> None:
        self._budget = budget
        self._amount = amount

    def shrink(self, amount: int) -> None:
        """Returns a part to the budget, so that at most this amount is kept."""
        if amount < self._amount:
            rest, self._amount = self._amount - amount, amount
            self._budget.release(rest)

    def release(self) -> None:
        """Returns the whole amount to the budget. Idempotent."""
        self.shrink(0)
