"""A stream as an async iterator: all pieces in order, then its end. It is paused while a piece is not taken."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from lean_ovms.types.push import Sink, StreamIterator


class Counting:
    """Sends numbers, and raises an error at the end if told to. `ended` says whether it was left or has ended."""

    def __init__(self, most: int, error: Exception | None = None) -> None:
        self.most = most
        self.error = error
        self.sent = 0
        self.ended = False

    async def push_to(self, sink: Sink[int]) -> None:
        try:
            while self.sent < self.most:
                self.sent += 1
                await sink.send(self.sent)
            if self.error is not None:
                raise self.error
        finally:
            self.ended = True


async def test_the_pieces_come_in_order_and_then_the_end() -> None:
    stream = Counting(5)
    async with aclosing(StreamIterator(stream)) as pieces:
        assert [piece async for piece in pieces] == [1, 2, 3, 4, 5]
        assert [piece async for piece in pieces] == []
    assert stream.ended


async def test_what_the_stream_raises_comes_after_its_pieces_and_stays() -> None:
    async with aclosing(StreamIterator(Counting(1, OSError("broken")))) as pieces:
        assert await anext(pieces) == 1
        for _ in range(2):
            with pytest.raises(OSError, match="broken"):
                await anext(pieces)


async def test_a_stream_is_at_most_one_piece_ahead() -> None:
    stream = Counting(9)
    async with aclosing(StreamIterator(stream)) as pieces:
        for taken in range(1, 4):
            assert await anext(pieces) == taken
            for _ in range(5):
                await asyncio.sleep(0)
            assert stream.sent == taken + 1
    assert stream.ended


async def test_pieces_that_are_pushed_without_a_pause_are_kept() -> None:
    class Eager:
        async def push_to(self, sink: Sink[int]) -> None:
            for number in range(3):
                sink.push(number)

    async with aclosing(StreamIterator(Eager())) as pieces:
        assert [piece async for piece in pieces] == [0, 1, 2]


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_closing_stops_the_stream_and_hides_what_it_raises(turns: int) -> None:
    sinks: list[Sink[int]] = []

    class Late:
        async def push_to(self, sink: Sink[int]) -> None:
            sinks.append(sink)
            try:
                await asyncio.Event().wait()
            finally:
                raise OSError("while it stops")

    pieces = StreamIterator[int](Late())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert pieces.waiting
    await pieces.aclose()
    await pieces.aclose()
    for sink in sinks:
        assert sink.paused() is not None
