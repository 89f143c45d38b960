"""The blocks of a decoder's process as they come through its socket, each in memory of its own.

A stream of asyncio takes every block twice through a growing buffer, and one task more for each.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, cast

from ...push_types import wake
from .framing import HEAD_BYTES, MAX_BLOCK, parse_head

AHEAD_BLOCKS = 3
"""Blocks that wait for their reader; with so many, nothing more is read from the socket."""


class BlockReader(asyncio.BufferedProtocol):
    """Reads the answers of one process. end: the object that ended the last answer."""

    def __init__(self) -> None:
        self.end: dict[str, Any] = {}
        self._transport: asyncio.Transport
        self._blocks: deque[bytes] = deque()  # b"": the end of an answer
        self._error: Exception | None = None
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._paused = False
        # what is being read: a head of a block, or a block with the head after it
        self._size = 0
        self._buffer = bytearray(HEAD_BYTES)
        self._filled = 0
        self._in_end = False

    async def next(self, seconds: float) -> bytes:
        """Returns the next block, b"" at the end of an answer. Raises OSError, EOFError, and asyncio.TimeoutError."""
        if not self._blocks:
            await asyncio.wait_for(self._block(), seconds)
        block = self._blocks.popleft()
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return block

    async def _block(self) -> None:
        while not self._blocks:
            if self._error is not None:
                raise self._error
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading

    async def write(self, data: bytes | memoryview) -> None:
        """Send, and wait until there is room for more. Raises OSError."""
        self._transport.write(data)
        while self._writing is not None:
            await self._writing
        if self._error is not None:
            raise self._error

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        before, self._filled = self._filled, self._filled + nbytes
        if not self._in_end and before < self._size <= self._filled:  # the next head comes with it, or later
            with memoryview(self._buffer) as view:
                self._add(bytes(view[: self._size]))
        if self._filled < len(self._buffer):
            return
        if self._in_end:
            self._take_end(self._buffer)
        else:
            self._expect(*parse_head(self._buffer, self._size))

    def _expect(self, size: int, is_end: bool) -> None:
        """Read what a head has announced."""
        self._size, self._in_end = size, is_end
        if size > MAX_BLOCK or (is_end and not size):
            self._give_up("a block of the audio decoder has a wrong size")
            return
        self._buffer = bytearray(self._size if self._in_end else self._size + HEAD_BYTES)
        self._filled = 0

    def _take_end(self, text: bytes | bytearray) -> None:
        self._in_end, self._size, self._filled, self._buffer = False, 0, 0, bytearray(HEAD_BYTES)
        try:
            self.end = dict(json.loads(text))
        except (ValueError, TypeError):
            self._give_up("the audio decoder's answer is not understood")
        else:
            self._add(b"")

    def _add(self, block: bytes) -> None:
        self._blocks.append(block)
        if len(self._blocks) >= AHEAD_BLOCKS and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        wake(self._reading)

    def pause_writing(self) -> None:
        self._writing = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writing, self._writing = self._writing, None
        wake(writing)

    def eof_received(self) -> None:
        self._fail(EOFError("the audio decoder has ended"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else EOFError("the audio decoder has ended"))
        self.resume_writing()

    def _give_up(self, why: str) -> None:
        self._fail(OSError(why))
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        wake(self._reading)
