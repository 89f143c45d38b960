"""Streams in tests: a body as a generator, and a stream as an async iterator or in a sink that can be closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from lean_ovms.types.push import PushStream, Sink, StreamIterator, wake

T = TypeVar("T")


class Iterated:
    """The base class of a body whose __aiter__ is an async generator of its pieces."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def push_to(self, sink: Sink[bytes]) -> None:
        async for piece in self:
            await sink.send(piece)


async def pieces(stream: PushStream[T] | Any) -> AsyncGenerator[T, None]:
    """Yields the pieces that a stream pushes. If it is left early, it must be closed."""
    async with aclosing(StreamIterator(stream)) as found:
        async for piece in found:
            yield piece


class Gate(Generic[T]):
    """A sink that keeps what is pushed, and can be shut, which pauses the stream until it is opened."""

    def __init__(self, stream: PushStream[T], *, is_open: bool = True) -> None:
        self.pieces: list[T] = []
        self._opened: asyncio.Future[None] | None = None
        if not is_open:
            self.shut()
        self.task = asyncio.ensure_future(stream.push_to(Sink(self.pieces.append, lambda: self._opened)))

    def shut(self) -> None:
        self._opened = asyncio.get_running_loop().create_future()

    def open(self) -> None:
        opened, self._opened = self._opened, None
        wake(opened)

    def take(self) -> list[T]:
        """Returns what was pushed since the last call."""
        taken = self.pieces[:]
        self.pieces.clear()
        return taken
