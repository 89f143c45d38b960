"""The answers of a decoder's process, in any cut."""

from __future__ import annotations

import asyncio

import pytest

from lean_ovms.media.audio.block_reader import AHEAD_BLOCKS, BlockReader
from lean_ovms.media.audio.framing import END, MAX_BLOCK, head


class Wire(asyncio.Transport):
    """The socket: paused, aborted: what the reader has asked for."""

    paused = aborted = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def connected() -> tuple[BlockReader, Wire]:
    reader, wire = BlockReader(), Wire()
    reader.connection_made(wire)
    return reader, wire


def feed(reader: BlockReader, data: bytes, most: int) -> None:
    """As a socket does: at most as many bytes as there is room for."""
    while data:
        room = reader.get_buffer(-1)
        size = min(len(room), len(data), most)
        assert size
        room[:size] = data[:size]
        reader.buffer_updated(size)
        data = data[size:]


def answer(*blocks: bytes, end: bytes = b"{}") -> bytes:
    return b"".join(head(len(block)) + block for block in blocks) + head(len(end), end=True) + end


@pytest.mark.parametrize("most", [1, 3, 4, 7, 1000])
async def test_two_files_in_any_cut(most: int) -> None:
    reader, _ = connected()
    feed(reader, answer(b"abcde", b"fg") + answer(end=b'{"error": "no"}'), most)
    assert [await reader.next(1) for _ in range(3)] == [b"abcde", b"fg", b""]
    assert await reader.next(1) == b""
    assert reader.end == {"error": "no"}


async def test_a_block_does_not_wait_for_the_next_one() -> None:
    reader, _ = connected()
    feed(reader, head(2) + b"ab", 100)
    assert await reader.next(1) == b"ab"
    with pytest.raises(asyncio.TimeoutError):
        await reader.next(0)
    reader.eof_received()
    with pytest.raises(EOFError):
        await reader.next(1)


async def test_nothing_is_read_while_blocks_wait() -> None:
    reader, wire = connected()
    feed(reader, (head(1) + b"a") * (AHEAD_BLOCKS - 1), 100)
    assert not wire.paused
    feed(reader, head(1) + b"a", 100)
    assert wire.paused
    await reader.next(1)
    assert not wire.paused


@pytest.mark.parametrize(
    "data",
    [head(MAX_BLOCK + 1), head(0, end=True), head(1, end=True) + b"{", head(1, end=True) + b"3"],
    ids=["too large", "no end", "no JSON", "no object"],
)
async def test_what_no_decoder_sends_ends_it(data: bytes) -> None:
    reader, wire = connected()
    feed(reader, data, 100)
    assert wire.aborted
    with pytest.raises(OSError, match="decoder"):
        await reader.next(1)


def test_heads() -> None:
    assert head(1) == b"\1\0\0\0"
    assert int.from_bytes(head(5, end=True), "little") == END + 5
