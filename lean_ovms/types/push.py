"""Passes the pieces of a stream to its client by plain calls from layer to layer, without a task switch for each piece.

A stream pushes to the Sink that it is given; a layer in between gives the stream below it a sink of its own. While the
last sink is paused (back-pressure) nothing is pushed: the first stream merges what arrives (engine/client/replies.py),
or waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
Paused = Callable[[], "asyncio.Future[None] | None"]


def never() -> None:
    """Returns None, which means that the sink is never paused."""


@dataclass(frozen=True, slots=True)
class Sink(Generic[T]):
    """The receiver of the pieces of a stream."""

    push: Callable[[T], object]
    """Receives a piece."""
    paused: Paused = never
    """Returns None if a piece may be pushed now, or else a future that is done when it may."""

    async def send(self, piece: T) -> None:
        """Pushes a piece, and waits until the next one may be pushed.

        Others may wait for the same future: cancelling this task does not cancel it for them.
        """
        self.push(piece)
        while (paused := self.paused()) is not None:
            await asyncio.shield(paused)


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Resolves a future that a task may be waiting for."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class PushStream(Protocol[T]):
    """A stream that can be pushed once."""

    async def push_to(self, sink: Sink[T]) -> None:
        """Pushes all pieces, and returns after the last one. After it is cancelled, nothing more is pushed."""


class StreamIterator(Generic[T]):
    """An asynchronous iterator over the pieces of a stream. Its owner must close it.

    The stream is paused while a piece has not been consumed.
    """

    def __init__(self, stream: PushStream[T]) -> None:
        self._pieces: deque[T] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._consumed: asyncio.Future[None] | None = None
        self._task = asyncio.ensure_future(stream.push_to(Sink(self._push, lambda: self._consumed)))
        self._task.add_done_callback(lambda _: wake(self._arrived))

    @property
    def waiting(self) -> bool:
        """Whether there is neither a piece nor the end yet."""
        return not self._pieces and not self._task.done()

    def __aiter__(self) -> StreamIterator[T]:
        return self

    async def __anext__(self) -> T:
        while self.waiting:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        if not self._pieces:
            self._task.result()  # raises what the stream has raised
            raise StopAsyncIteration
        piece = self._pieces.popleft()
        if not self._pieces:
            consumed, self._consumed = self._consumed, None
            wake(consumed)
        return piece

    async def aclose(self) -> None:
        """Cancels the stream's task immediately. Idempotent."""
        if not self._task.done():
            self._consumed = asyncio.get_running_loop().create_future()  # never done
            self._task.cancel()
            await asyncio.wait({self._task})
        self._task.cancelled() or self._task.exception()  # it may be unread

    def _push(self, piece: T) -> None:
        self._pieces.append(piece)
        if self._consumed is None:
            self._consumed = asyncio.get_running_loop().create_future()
        wake(self._arrived)
