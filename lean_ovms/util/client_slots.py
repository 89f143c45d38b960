"""Slots that clients share. A client that finds none free waits, and waiting clients take turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Hashable

from .round_robin import RoundRobin


def share(most: int) -> int:
    """Returns how many of `most` slots one client may hold for a long time, so that others find one at once."""
    return max(1, most - most // 4)


class ClientSlots:
    """A number of slots. A client that holds its share of them waits even if others are free."""

    def __init__(self, most: int, most_of_client: int | None = None) -> None:
        """Creates free slots, of which one client may have `most_of_client`, or all."""
        self.free = most
        self._share = most if most_of_client is None else most_of_client
        self._held: Counter[Hashable] = Counter()
        self._waiting: RoundRobin[tuple[str, asyncio.Future[None]]] = RoundRobin()

    def at_share(self, client: Hashable) -> bool:
        """Returns whether a client holds as many slots as it may."""
        return self._held[client] >= self._share

    async def acquire(self, client: str) -> None:
        """Acquires a slot for a client, waiting for its turn. It must be returned by `release`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, (client, turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(client, (client, turn))
            else:  # the slot came in the same turn of the loop
                self.release(client)
            raise

    def release(self, client: str) -> None:
        """Releases a slot of a client."""
        self.free += 1
        self._held -= Counter((client,))  # keeps no zero
        self._grant()

    @contextlib.asynccontextmanager
    async def held(self, client: str) -> AsyncIterator[None]:
        """Holds a slot inside the `with` block."""
        await self.acquire(client)
        try:
            yield
        finally:
            self.release(client)

    def _grant(self) -> None:
        while self.free and (next_one := self._waiting.next(lambda one: not self.at_share(one[0]))) is not None:
            client, turn = next_one
            if not turn.done():  # else its task has been cancelled, and has not run since
                self.free -= 1
                self._held[client] += 1
                turn.set_result(None)
