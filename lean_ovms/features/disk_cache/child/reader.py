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
from ....engine.paged.sequence import NO_STATE
from .block_store import BlockStore
from .segment import nbytes

log = logging.getLogger(__name__)


class Speed:
    """Measures how much was done in a second, lately."""

    def __init__(self) -> None:
        """Begins with nothing measured."""
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Notes that so much took so many seconds."""
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
    """Blocks that are read for a sequence, behind those that it has in memory."""

    chain: list[int]
    """The serial numbers of the blocks in memory."""
    parent: Parent
    """The parent of the sequence's first block."""
    cached: list[int]
    """The blocks in memory, with a reference to each."""
    blocks: list[int]
    """The blocks that are read to, with a reference to each."""
    keys: list[bytes]
    """The key of each of these on disk."""
    tokens: list[array[int]]
    """The tokens of each of these."""
    slot: int
    """The slot that the state behind the last block is read to; NO_STATE: none is read."""
    slot_key: bytes
    """The key of that state on disk."""
    until: float
    """When the sequence goes on without the blocks, by time.monotonic."""
    read: int = 0
    """How many blocks were read, in the order of the sequence."""
    state_read: bool = False
    """Whether the state was read."""
    cancelled: bool = False
    """Whether nobody waits for it any more."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set when the thread is done with it."""


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
        """Has blocks read, after those of earlier calls."""
        self._wanted.put(read)

    def wait(self, seconds: float) -> None:
        """Waits until something has been read since the last call, so many seconds at most."""
        self._news.wait(seconds)
        self._news.clear()

    def close(self) -> None:
        """Ends the thread when it has read what is wanted so far."""
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
