"""How many work with a thing at this moment, and when nobody does any more. Knows nothing of the thing."""

from __future__ import annotations

import asyncio


class InFlight:
    """A count of uses; each begin has its end. As a context manager, one use."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        """One more."""
        self._count += 1
        self._none.clear()

    def end(self) -> None:
        """One less."""
        self._count -= 1
        if not self._count:
            self._none.set()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    async def over(self) -> None:
        """Wait until there is none."""
        await self._none.wait()
