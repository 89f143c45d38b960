"""The thread that reads blocks from disk into memory that was allocated for them, and what reading costs."""

from __future__ import annotations

import logging
import queue
import threading
import time
from array import array
from dataclasses import dataclass, field

from ....engine.errors import last_line
from ....engine.paged.block_manager import Parent
from ....engine.paged.network import Network
from ....engine.paged.state_cache import NO_STATE
from .block_store import BlockStore
from .segment import nbytes

log = logging.getLogger(__name__)


class Speed:
    """How much was done in a second, lately."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        self._amount = 0.9 * self._amount + amount
        self._seconds = 0.9 * self._seconds + seconds

    def seconds(self, amount: float) -> float | None:
        """Returns how long so much will take; None: unknown."""
        return amount * self._seconds / self._amount if self._amount and self._seconds else None

    def decay(self) -> None:
        """Makes the next estimate a little faster, so that what is not tried any more is tried again at some time."""
        self._seconds *= 0.95


@dataclass(eq=False, kw_only=True)
class BlockRead:
    """Blocks that are read for a sequence. chain, cached: those before them in memory, with references to all.

    blocks, keys, tokens: to be read. slot: for the state behind the last block; NO_STATE: none. until: when the
    sequence goes on without them. read: how many blocks were, in the order of the sequence.
    """

    chain: list[int]
    parent: Parent
    cached: list[int]
    blocks: list[int]
    keys: list[bytes]
    tokens: list[array[int]]
    slot: int
    slot_key: bytes
    until: float
    read: int = 0
    state_read: bool = False
    cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class BlockReader:
    """Reads blocks for one engine. speed: in bytes. bytes, seconds: in all."""

    def __init__(self, store: BlockStore, network: Network) -> None:
        self.speed = Speed()
        self.bytes = 0
        self.seconds = 0.0
        self._store = store
        self._network = network
        self._wanted: queue.SimpleQueue[BlockRead | None] = queue.SimpleQueue()
        self._news = threading.Event()
        threading.Thread(target=self._run, name="prefix-cache-read", daemon=True).start()

    def begin(self, read: BlockRead) -> None:
        self._wanted.put(read)

    def wait(self, seconds: float) -> None:
        """Waits until something has been read since the last call, so many seconds at most."""
        self._news.wait(seconds)
        self._news.clear()

    def close(self) -> None:
        self._wanted.put(None)

    def _run(self) -> None:
        while (read := self._wanted.get()) is not None:
            begin, size = time.monotonic(), 0
            try:
                size = self._read(read)
            except Exception as error:  # the thread goes on: a cache may miss
                log.error("prefix cache on disk: %s", last_line(error))
            seconds = time.monotonic() - begin
            if size:
                self.speed.add(size, seconds)
            self.bytes += size
            self.seconds += seconds
            read.done.set()
            self._news.set()

    def _read(self, read: BlockRead) -> int:
        """Returns how many bytes were read."""
        size = 0
        for key, block in zip(read.keys, read.blocks, strict=True):
            buffers = self._network.block_buffers(block)
            if read.cancelled or not self._store.read(key, buffers):
                return size
            read.read += 1
            size += nbytes(buffers)
        if read.slot != NO_STATE and not read.cancelled:
            buffers = self._network.state_buffers(read.slot)
            read.state_read = self._store.read(read.slot_key, buffers)
            size += nbytes(buffers) * read.state_read
        return size
