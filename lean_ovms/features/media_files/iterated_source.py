"""A Source of api.sse that reads its events from an iterator, for streams that are no generations of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Generic, TypeVar

from ...types import Usage
from ...types.push import Sink

D = TypeVar("D")
"""The events of the stream, such as those of a transcription."""


class IteratedSource(Generic[D]):
    """A Source that reads its events from an iterator, which it closes in any case."""

    usage = Usage()

    def __init__(self, events: AsyncGenerator[D, None]) -> None:
        self._events = events
        self._next: asyncio.Task[D] | None = None

    async def begin(self, seconds: float) -> None:
        """Waits at most `seconds` for the first event, so that an early error can still set the status of the response.

        Raises RequestError after closing the source.
        """
        self._next = asyncio.ensure_future(anext(self._events))
        try:
            await asyncio.wait([self._next], timeout=seconds or None)
            if self._next.done() and not isinstance(error := self._next.exception(), (type(None), StopAsyncIteration)):
                raise error
        except BaseException:
            await self.aclose()
            raise

    async def push_to(self, sink: Sink[list[D]]) -> None:
        """Pushes the events as they arrive, and returns after the last one. Raises RequestError."""
        with suppress(StopAsyncIteration):
            while True:
                found = await (self._next or anext(self._events))
                self._next = None
                await sink.send([found])

    async def aclose(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._events.aclose()
