"""The thread that reads blocks from disk into allocated blocks in memory, and the measurement of its speed."""

from __future__ import annotations

import logging
import queue
import threading
import time
from array import array
from dataclasses import dataclass, field

import numpy as np

from ....engine.paged.block_manager import Parent
from ....engine.paged.network import Network
from ....engine.paged.sequence import Sequence
from ....errors import last_line
from .block_store import BlockStore
from .segment import Bytes, nbytes

log = logging.getLogger(__name__)


class Speed:
    """Estimates a speed from recent work."""

    def __init__(self) -> None:
        """Begins with nothing measured."""
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Adds a measurement: `amount` took `seconds`."""
        self._amount = 0.9 * self._amount + amount
        self._seconds = 0.9 * self._seconds + seconds

    def seconds(self, amount: float) -> float | None:
        """Returns the estimated seconds for an amount, or None if nothing was measured."""
        return amount * self._seconds / self._amount if self._amount and self._seconds else None

    def decay(self) -> None:
        """Makes the next estimates a little faster, so that work estimated as too slow is tried again some time."""
        self._seconds *= 0.95


@dataclass(eq=False, kw_only=True)
class BlockRead:
    """The reading of blocks for a sequence, after those that are in memory."""

    chain: list[int]
    """The serial numbers of the blocks in memory."""
    parent: Parent
    """The parent of the sequence's first block."""
    cached: list[int]
    """The blocks in memory, on each of which the read holds a reference."""
    blocks: list[int]
    """The blocks that receive the data, on each of which the read holds a reference."""
    keys: list[bytes]
    """The key on disk of each of these blocks."""
    tokens: list[array[int]]
    """The tokens of each of these blocks."""
    state_key: bytes
    """The key on disk of the state after the last block; empty for a network without states."""
    until: float
    """The time by time.monotonic at which the sequence stops waiting for the blocks."""
    followers: set[Sequence] = field(default_factory=set)
    """Other sequences that wait for the same blocks, and look for theirs again when this has ended."""
    read: int = 0
    """The number of blocks that were read, in the order of the sequence."""
    state: list[Bytes] = field(default_factory=list)
    """The state; empty if it was not read. It is not in a slot meanwhile, since running sequences may need all."""
    cancelled: bool = False
    """Whether no sequence waits for the blocks any more."""
    done: threading.Event = field(default_factory=threading.Event)
    """The event that is set when the thread is done."""


class BlockReader:
    """Reads blocks for one engine."""

    def __init__(self, store: BlockStore, network: Network) -> None:
        """Starts the thread, which reads from the store into the network's cache."""
        self.speed = Speed()
        """The speed of reading, in bytes."""
        self.bytes = 0
        """The bytes that were read since the start."""
        self.seconds = 0.0
        """The time that reading took since the start."""
        self._store = store
        self._network = network
        self._wanted: queue.SimpleQueue[BlockRead | None] = queue.SimpleQueue()
        self._news = threading.Event()
        threading.Thread(target=self._run, name="prefix-cache-read", daemon=True).start()

    def begin(self, read: BlockRead) -> None:
        """Queues blocks for reading, after those of earlier calls."""
        self._wanted.put(read)

    def wait(self, seconds: float) -> None:
        """Waits until something has been read since the last call, at most `seconds`."""
        self._news.wait(seconds)
        self._news.clear()

    def close(self) -> None:
        """Ends the thread after it has read everything that is queued."""
        self._wanted.put(None)

    def _run(self) -> None:
        while (read := self._wanted.get()) is not None:
            begin, size = time.monotonic(), 0
            try:
                size = self._read(read)
            except Exception as error:  # the thread continues, because a cache may miss
                log.error("prefix cache on disk: %s", last_line(error))
            seconds = time.monotonic() - begin
            if size:
                self.speed.add(size, seconds)
            self.bytes += size
            self.seconds += seconds
            read.done.set()
            self._news.set()

    def _read(self, read: BlockRead) -> int:
        """Reads queued blocks, and returns the number of bytes that were read."""
        size = 0
        for key, block in zip(read.keys, read.blocks, strict=True):
            buffers = self._network.block_buffers(block)
            if read.cancelled or not self._store.read(key, buffers):
                return size
            read.read += 1
            size += nbytes(buffers)
        if read.state_key and not read.cancelled:
            state = [np.empty_like(buffer) for buffer in self._network.state_buffers(0)]
            if self._store.read(read.state_key, state):
                read.state = state
                size += nbytes(state)
        return size
