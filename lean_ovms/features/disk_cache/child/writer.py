"""The thread that writes blocks to disk during the engine's steps.

It writes copies of blocks that were evicted, blocks that will be evicted next, all new blocks when nothing has been
computed for a while, and the rest at the end. It reads blocks in memory without a lock: one that is still in the prefix
cache afterwards has not changed meanwhile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from ....engine.paged.block_manager import BlockManager
from ....engine.paged.network import Network
from ....engine.paged.sequence import NO_STATE
from ....engine.paged.state_checkpoints import StateCache
from ....errors import EngineFailure, last_line
from ..records import BlocksOnDisk, DiskCacheAction
from .block_store import BlockStore
from .keys import BlockKeys, state_key
from .segment import Bytes, nbytes

log = logging.getLogger(__name__)

QUEUED_BYTES = 128 << 20
"""Copies that wait to be written; more are dropped."""
LEAVING = 8
"""The divisor of the number of blocks for those that leave memory next."""
REST_S = 1.0
"""Time without a step after which blocks are written that stay in memory."""
CLEAR_S = 30.0
NO_BYTES = np.zeros(0, np.uint8)
"""The copy of a block that is to be removed."""
NOTHING = b"", NO_BYTES
"""A copy that only wakes the thread."""


class BlockWriter:
    """Writes the blocks of one engine."""

    def __init__(
        self, store: BlockStore, network: Network, blocks: BlockManager, states: StateCache, keys: BlockKeys
    ) -> None:
        """Starts the thread.

        Args:
            store: The blocks on disk.
            network: The network, whose cache is read.
            blocks: The blocks in memory.
            states: The states in memory, of a hybrid network.
            keys: The keys of the blocks in memory; the engine's thread adds and removes them.
        """
        self.busy = False
        """Whether steps are computed."""
        self.seconds = 0.0
        """The time that writing took since the start."""
        self.dropped = 0
        """Blocks and states that were not written because too many waited, or there was no memory."""
        self._store = store
        self._network = network
        self._blocks = blocks
        self._states = states
        self._keys = keys
        self._copies: queue.SimpleQueue[tuple[bytes, Bytes]] = queue.SimpleQueue()
        self._copied = self._written = 0  # in bytes; each is written by one thread
        self._offered: set[tuple[int, bool]] = set()  # serial numbers, and whether the state was offered
        self._rested_since = time.monotonic()
        self._closing = self._clearing = False
        self._failed = 0  # the number of blocks and states that could not be written
        self.calls: list[tuple[DiskCacheAction, tuple[int, int, int]]] = []
        """The tasks to be done at once, each with the counts at the time of the call."""
        self.answers: deque[BlocksOnDisk] = deque()
        """The answers to calls that are done."""
        self._cleared = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefix-cache-write", daemon=True)
        self._thread.start()

    # --- in the engine's thread

    def copy(self, key: bytes, buffers: Sequence[Bytes]) -> None:
        """Copies a block that is being evicted, and queues the copy for writing."""
        size, queued = nbytes(buffers), self._copied - self._written
        try:
            copy = None if queued and queued + size > QUEUED_BYTES else np.concatenate(buffers)
        except MemoryError:  # the block is evicted in any case
            copy = None
        if copy is None:
            self.dropped += 1
            return
        self._copied += size
        self._copies.put((key, copy))

    def discard(self, key: bytes) -> None:
        """Removes a block with wrong content from disk and from the queue of copies."""
        self._copies.put((key, NO_BYTES))

    def evicted(self, serial: int) -> None:
        """Notes that a block is not in memory any more."""
        self._offered -= {(serial, False), (serial, True)}

    def written(self, serial: int) -> None:
        """Notes that a block in memory is also on disk."""
        self._offered.add((serial, False))

    def rest(self) -> None:
        """Notes that the engine has nothing to compute."""
        if self.busy:
            self.busy, self._rested_since = False, time.monotonic()

    def call(self, action: DiskCacheAction) -> None:
        """Starts writing all blocks in memory, or finding those that others have written, without waiting for it."""
        self.calls.append((action, self._counts()))
        self._copies.put(NOTHING)

    def clear(self) -> None:
        """Removes all blocks from disk and from the queue. Raises EngineFailure."""
        self._cleared.clear()
        self._clearing = True
        self._copies.put(NOTHING)
        if not self._cleared.wait(CLEAR_S):
            raise EngineFailure("The prefix cache on disk could not be removed in time.")

    def close(self, seconds: float) -> None:
        """Writes the blocks that are only in memory, for at most `seconds`, and ends the thread."""
        self.rest()
        self._closing = True
        self._copies.put(NOTHING)
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("prefix cache on disk: not all blocks were written within %g s", seconds)

    # --- in its own

    def _run(self) -> None:
        while True:
            try:
                key, copy = self._copies.get(timeout=REST_S)
            except queue.Empty:
                key, copy = NOTHING
            self._written += copy.nbytes
            try:
                if self._clearing:
                    self._clear()
                elif key and not copy.nbytes:
                    self._store.discard(key)
                elif key:
                    self._write(key, copy)
                else:
                    self._write_new()
                if self._closing and self._copies.empty():
                    self._write_memory(save=True)
                    self._store.close()
                    return
            except Exception as error:  # the thread continues, because a cache may miss
                log.error("prefix cache on disk: %s", last_line(error))
                self._failed += 1
                self._answer(len(self.calls))
                if self._closing:
                    return

    def _clear(self) -> None:
        while not self._copies.empty():
            _, copy = self._copies.get()
            self._written += copy.nbytes
        self._clearing = False
        self._store.clear()
        self._cleared.set()

    def _write_new(self) -> None:
        """Carries out the called action, or without one writes blocks that are in memory."""
        calls, save = len(self.calls), any(call.action == "save" for call, _ in self.calls)
        self._store.refresh()
        if self._write_memory(save=save) or not save:
            self._answer(calls)
        else:
            self._copies.put(NOTHING)  # answered after the copies that are waiting

    def _answer(self, calls: int) -> None:
        for call, before in self.calls[:calls]:
            found = [len(self._store), self._store.size]
            if call.action == "save":
                found = [after - count for after, count in zip(self._counts(), before, strict=True)]
            self.answers.append(BlocksOnDisk(call.id, *found))
        del self.calls[:calls]

    def _counts(self) -> tuple[int, int, int]:
        return self._store.written_blocks, self._store.written_bytes, self._failed

    def _write(self, key: bytes, copy: Bytes) -> None:
        begin = time.monotonic()
        self._failed += not self._store.write(key, [copy])
        self.seconds += time.monotonic() - begin

    def _write_memory(self, *, save: bool) -> bool:
        """Writes blocks in memory: those that will be evicted next, and all while nothing is computed.

        Copies of evicted blocks take precedence, unless `save` is set.
        """
        before, urgent = self._store.written_blocks, save or self._closing
        resting = not self.busy and time.monotonic() > self._rested_since + REST_S
        leaving = max(0, self._blocks.total // LEAVING - self._blocks.free)
        candidates = self._blocks.cached(None if urgent or resting else leaving)
        most = max(1, self._store.limit // nbytes(self._network.block_buffers(0)))
        # The first blocks of a prompt are worth most.
        for block, serial in sorted(candidates[-most:], key=itemgetter(1)):
            first = self._closing or self._copies.empty() or (save and self._store.written_blocks == before)
            if not first or (resting and self.busy and not urgent):
                return False
            key = self._keys.get(serial)
            if key is None:
                continue
            if (serial, False) not in self._offered or urgent:
                self._offered.add((serial, False))
                self._write_cached(key, serial, block, NO_STATE)
            slot = self._states.checkpoint(serial)
            if slot != NO_STATE and ((serial, True) not in self._offered or urgent):
                self._offered.add((serial, True))
                self._write_cached(state_key(key), serial, block, slot)
        return True

    def _write_cached(self, key: bytes, serial: int, block: int, slot: int) -> None:
        """Writes a block, or the state after it in a slot, unless it was evicted while it was copied."""
        if key in self._store:
            return
        buffers = self._network.block_buffers(block) if slot == NO_STATE else self._network.state_buffers(slot)
        copy = np.concatenate(buffers)
        if self._blocks.has(serial) and (slot == NO_STATE or self._states.checkpoint(serial) == slot):
            self._write(key, copy)
