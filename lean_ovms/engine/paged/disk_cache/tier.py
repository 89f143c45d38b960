"""The prefix cache's tier on disk: which blocks are written and when, and which prompts wait for blocks that are read.

Blocks are written by a thread: when they leave memory, from a copy that the step's thread makes; before that, while
nothing is computed, and those that will leave memory next; and all of them at the end. What it reads of memory it reads
without a lock: a block that is still in the prefix cache afterwards has not changed meanwhile.

Another thread reads blocks into memory that was allocated for them, while the sequence that wants them waits and others
go on. Then they are blocks of the prefix cache like all others. They are read if that takes less time than to compute
them, by what reading and computing took lately.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from ...errors import last_line
from ..block_manager import BlockManager, Parent
from ..lora.adapters import Adapter
from ..network import Network
from ..sequence import Sequence
from ..state_cache import NO_STATE, StateCache
from .segment import Bytes
from .store import Store

log = logging.getLogger(__name__)

QUEUED_BYTES = 128 << 20
"""Copies of blocks that wait to be written; more are dropped."""
QUEUED_READS = 8
"""Prompts whose blocks are read, or wait for it."""
LEAVING = 8
"""The blocks that leave memory next: one of so many."""
REST_S = 1.0
"""Time without a step after which blocks are written that stay in memory."""
MOST_S, LEAST_S = 30.0, 0.5
"""How long a sequence waits for blocks at most, if computing them takes as long; and in any case."""
STATE = b"state"
"""In the key of the state behind a block, which is stored apart from it."""


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

    def forget(self) -> None:
        """Makes the next estimate a little faster, so that what is not tried any more is tried again at some time."""
        self._seconds *= 0.95


@dataclass(eq=False)
class Read:
    """Blocks that are read for a sequence. chain, held: those before them in memory, with references to all.

    blocks, keys, tokens: to be read. slot: for the state behind the last block; NO_STATE: none. until: when the
    sequence goes on without them. read: how many blocks were, in the order of the sequence.
    """

    chain: list[int]
    parent: Parent
    held: list[int]
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


class DiskTier:
    """The tier of one engine; a block_manager.Tier. All but the threads' own is called in the engine's thread.

    busy: steps are computed. hit_tokens: read from disk since the start. dropped_blocks: not written, for want of time.
    """

    def __init__(self, store: Store, network: Network, blocks: BlockManager, states: StateCache) -> None:
        self.busy = False
        self.hit_tokens = self.dropped_blocks = self.read_bytes = 0
        self.read_seconds = self.write_seconds = 0.0
        self.store = store
        self._network = network
        self._blocks = blocks
        self._states = states
        self._block_bytes = sum(part.nbytes for part in network.block_buffers(0))
        self._state_bytes = sum(part.nbytes for part in network.state_buffers(0)) if states.total else 0
        self._keys: dict[int, bytes] = {}  # by serial number
        self._adapters: dict[str, bytes] = {}  # what adapters compute, by their keys
        self._offered: set[tuple[int, bool]] = set()  # serial numbers, and whether of the state
        self._copies: queue.SimpleQueue[tuple[bytes, Bytes]] = queue.SimpleQueue()
        self._copied = self._written = 0  # bytes; one thread counts each
        self._rested_since = time.monotonic()
        self._closing = self._urgent = False
        self._reading: dict[Sequence, Read] = {}
        self._abandoned: list[Read] = []
        self._reads: queue.SimpleQueue[Read | None] = queue.SimpleQueue()
        self._news = threading.Event()
        self._began = 0.0
        self._computing, self._transfer = Speed(), Speed()
        self._threads = [
            threading.Thread(target=self._write_all, name="prefix-cache-write", daemon=True),
            threading.Thread(target=self._read_all, name="prefix-cache-read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stats(self) -> dict[str, Any]:
        """Returns the fields of engine_types.EngineStats that are about this tier."""
        store = self.store
        return {
            "disk_tier": True,
            "disk_hit_tokens": self.hit_tokens,
            "disk_bytes": store.size,
            "disk_read_bytes": self.read_bytes,
            "disk_written_bytes": store.written_bytes,
            "disk_removed_bytes": store.removed_bytes,
            "disk_read_seconds": self.read_seconds,
            "disk_write_seconds": self.write_seconds,
            "disk_dropped_blocks": self.dropped_blocks,
            "disk_errors": store.errors,
        }

    # --- block_manager.Tier

    def registered(self, serial: int, parent: Parent, tokens: bytes) -> None:
        """Notes the key of a block that is in the prefix cache from now on."""
        before = self._keys.get(parent) if isinstance(parent, int) else self._root(parent)
        if before is not None:
            self._keys[serial] = _key(before, tokens)

    def evicted(self, block: int, serial: int) -> None:
        """Copies a block that leaves memory, to be written, unless it was."""
        key = self._keys.pop(serial, None)
        self._offered -= {(serial, False), (serial, True)}
        if key is None:
            return
        if key not in self.store:
            self._copy(key, self._block_bytes, self._network.block_buffers(block))
        self.state_evicted(serial, key)

    def state_evicted(self, serial: int, key: bytes | None = None) -> None:
        """Copies the state behind a block, which leaves memory, to be written, unless it was."""
        key = key or self._keys.get(serial)
        slot = self._states.checkpoint(serial)
        if key is not None and slot != NO_STATE and (key := _key(key, STATE)) not in self.store:
            self._copy(key, self._state_bytes, self._network.state_buffers(slot))

    def _copy(self, key: bytes, size: int, buffers: Iterable[Bytes]) -> None:
        queued = self._copied - self._written
        if queued and queued + size > QUEUED_BYTES:
            self.dropped_blocks += 1
            return
        self._copied += size
        self._copies.put((key, np.concatenate(list(buffers))))

    # --- reading

    @property
    def reading(self) -> bool:
        """Whether something is being read."""
        return bool(self._reading or self._abandoned)

    def must_wait(self, sequence: Sequence, beginning: Parent | None) -> bool:
        """Returns whether a sequence waits for blocks that are read; begins to read those that are worth it.

        beginning: the parent of its first block; None: it does not use the prefix cache.
        """
        if (read := self._reading.get(sequence)) is not None:
            if read.done.is_set() or time.monotonic() < read.until:
                return True  # `poll` ends what is read
            self._abandon(sequence)
            return False
        if sequence.looked_up or beginning is None:
            return False
        if sequence.params.adapter is not None:
            self._know(sequence.params.adapter)
        if not len(self.store) or sequence.needs_prompt_logprobs:
            return False
        wait = self._begin(sequence, beginning)
        sequence.looked_up = not wait
        return wait

    def poll(self) -> None:
        """Puts what has been read into the prefix cache."""
        self._news.clear()
        for sequence, read in list(self._reading.items()):
            if read.done.is_set():
                del self._reading[sequence]
                sequence.looked_up = True
                self._end(read)
            elif sequence.state == "over":
                self._abandon(sequence)
        for read in list(self._abandoned):
            if read.done.is_set():
                self._abandoned.remove(read)
                self._end(read)

    def wait(self, seconds: float) -> None:
        """Waits until something has been read, so many seconds at most."""
        self._news.wait(seconds)

    def abandon_all(self) -> None:
        """Gives the blocks back that are allocated for reading: a running sequence needs them."""
        for sequence in list(self._reading):
            self._abandon(sequence)
        until = time.monotonic() + LEAST_S
        for read in self._abandoned:
            read.done.wait(max(0.0, until - time.monotonic()))
        self.poll()

    def _abandon(self, sequence: Sequence) -> None:
        read = self._reading.pop(sequence)
        read.cancelled = sequence.looked_up = True
        self._abandoned.append(read)

    def _begin(self, sequence: Sequence, beginning: Parent) -> bool:
        """Begins to read blocks for a sequence, or finds that others are read which it needs; False: neither."""
        size, ids, store, states = self._blocks.block_size, sequence.ids, self.store, self._states
        end = len(ids) - 1
        found = self._blocks.match(ids, 0, end, beginning)
        held, chain = [block for block, _ in found], [serial for _, serial in found]
        key = self._keys.get(chain[-1]) if chain else self._root(beginning)
        keys: list[bytes] = []
        for at in range(len(chain) * size, end - size + 1, size):
            key = key and _key(key, ids[at : at + size].tobytes())
            if not key or key not in store:
                break
            keys.append(key)
        usable = self._states.matched(chain)
        if states.total:
            ends = [self._keys.get(serial, b"") for serial in chain] + keys
            last = next((n for n in range(len(ends), usable, -1) if _key(ends[n - 1], STATE) in store), usable)
            held, chain, keys = held[:last], chain[:last], keys[: max(0, last - len(chain))]
            self._blocks.release([block for block, _ in found[last:]])
        else:
            last = len(chain) + min(len(keys), self._blocks.available)
            keys = keys[: last - len(chain)]
        if last <= usable:
            self._blocks.release(held)
            return False
        slot_key = _key(keys[-1] if keys else self._keys.get(chain[-1], b""), STATE)
        first = keys[0] if keys else slot_key
        if any(first == read.slot_key or first in read.keys for read in self._reading.values()):
            self._blocks.release(held)
            return True
        seconds = self._worth((last - usable) * size, len(keys) * self._block_bytes + self._state_bytes)
        room = len(keys) <= self._blocks.available and len(self._reading) < QUEUED_READS
        slot = states.allocate() if states.total and seconds and room else NO_STATE
        if not seconds or not room or (states.total and slot == NO_STATE):
            self._blocks.release(held)
            return False
        begin = len(chain)
        read = Read(
            chain=chain,
            parent=beginning,
            held=held,
            blocks=[self._blocks.allocate() for _ in keys],
            keys=keys,
            tokens=[ids[at * size : (at + 1) * size] for at in range(begin, last)],
            slot=slot,
            slot_key=slot_key,
            until=time.monotonic() + seconds,
        )
        self._reading[sequence] = read
        self._reads.put(read)
        return True

    def _worth(self, tokens: int, size: int) -> float:
        """Returns how long a sequence may wait for so many bytes instead of computing so many tokens; 0: not at all."""
        computing, reading = self._computing.seconds(tokens), self._transfer.seconds(size)
        if computing is not None and reading is not None and reading >= computing:
            self._transfer.forget()
            return 0.0
        return MOST_S if computing is None else max(LEAST_S, computing)

    def _end(self, read: Read) -> None:
        """Puts the blocks that were read into the prefix cache, and gives up the references to all."""
        chain = list(read.chain)
        for block, tokens in zip(read.blocks[: read.read], read.tokens, strict=False):
            chain.append(self._blocks.register(block, tokens, chain[-1] if chain else read.parent))
        self.hit_tokens += read.read * self._blocks.block_size
        if read.slot != NO_STATE:
            if read.state_read and self._blocks.has(chain[-1]):
                self._states.add(chain, read.slot, "prompt")
            self._states.release(read.slot)
        self._blocks.release(read.held + read.blocks)

    def _read_all(self) -> None:
        while (read := self._reads.get()) is not None:
            begin, size = time.monotonic(), 0
            for key, block in zip(read.keys, read.blocks, strict=True):
                if read.cancelled or not self.store.read(key, self._network.block_buffers(block)):
                    break
                read.read += 1
                size += self._block_bytes
            if read.slot != NO_STATE and read.read == len(read.keys) and not read.cancelled:
                read.state_read = self.store.read(read.slot_key, self._network.state_buffers(read.slot))
                size += self._state_bytes
            seconds = time.monotonic() - begin
            if size:
                self._transfer.add(size, seconds)
            self.read_bytes += size
            self.read_seconds += seconds
            read.done.set()
            self._news.set()

    # --- keys

    def _know(self, adapter: Adapter) -> None:
        """Notes what an adapter computes: its name may be another's after a restart."""
        if adapter.key not in self._adapters:
            found = hashlib.blake2b(repr(adapter.scale).encode(), digest_size=32)
            for layer, matrices in sorted(adapter.layers.items()):
                for matrix in matrices:
                    found.update(f"{layer}{matrix.shape}{matrix.dtype}".encode())
                    found.update(np.ascontiguousarray(matrix).data)
            self._adapters[adapter.key] = found.digest()

    def _root(self, parent: int | str | tuple[str, str]) -> bytes | None:
        """Returns the key before a sequence's first block; None: its blocks are not stored."""
        adapter, salt = parent if isinstance(parent, tuple) else ("", str(parent))
        known = self._adapters.get(adapter) if adapter else b""
        return None if known is None else _key(known, salt.encode("utf-8", "surrogatepass"))

    # --- computing

    def begin_step(self) -> None:
        self._began = time.monotonic()
        self.busy = True

    def end_step(self, tokens: int) -> None:
        """Notes how long a step with prompts took. tokens: of all its sequences."""
        self._computing.add(tokens, time.monotonic() - self._began)

    def rest(self) -> None:
        """Notes that there is nothing to compute."""
        if self.busy:
            self.busy, self._rested_since = False, time.monotonic()

    # --- writing

    def write_behind(self) -> None:
        """Has all blocks written that are in memory, without a wait."""
        self._urgent = True
        self._copies.put((b"", np.zeros(0, np.uint8)))

    def close(self, seconds: float) -> None:
        """Writes what is in memory alone, in so many seconds at most, and ends the threads."""
        self.rest()
        self._closing = True
        self._reads.put(None)
        self._copies.put((b"", np.zeros(0, np.uint8)))
        self._threads[0].join(seconds)
        if self._threads[0].is_alive():
            log.warning("prefix cache on disk: %g s were not enough to write all blocks", seconds)

    def _write_all(self) -> None:
        while True:
            try:
                key, copy = self._copies.get(timeout=REST_S)
            except queue.Empty:
                key, copy = b"", np.zeros(0, np.uint8)
            try:
                if key:
                    self._write(key, copy)
                    self._written += copy.nbytes
                else:
                    self.store.refresh()
                    self._write_some()
            except Exception as error:  # the thread goes on: a cache may miss
                log.error("prefix cache on disk: %s", last_line(error))
            if self._closing and self._copies.empty():
                self._write_some()
                self.store.close()
                return

    def _write(self, key: bytes, copy: Bytes) -> None:
        begin = time.monotonic()
        self.store.write(key, [copy])
        self.write_seconds += time.monotonic() - begin

    def _write_some(self) -> None:
        """Writes blocks that are in memory: those that leave it next, and all while nothing is computed."""
        urgent, self._urgent = self._urgent or self._closing, False
        resting = not self.busy and time.monotonic() > self._rested_since + REST_S
        blocks = self._blocks
        candidates = blocks.cached(None if urgent or resting else self._leaving())
        most = max(1, self.store.limit // self._block_bytes)
        for block, serial in sorted(candidates[-most:], key=itemgetter(1)):  # a beginning is worth more than an end
            if not (self._closing or self._copies.empty()) or (resting and self.busy and not urgent):
                return
            key = self._keys.get(serial)
            if key is None:
                continue
            if (serial, False) not in self._offered or (self._closing and key not in self.store):
                self._offered.add((serial, False))
                self._write_memory(key, serial, block, NO_STATE)
            slot = self._states.checkpoint(serial)
            if slot != NO_STATE and ((serial, True) not in self._offered or self._closing):
                self._offered.add((serial, True))
                self._write_memory(_key(key, STATE), serial, block, slot)

    def _leaving(self) -> int:
        """Returns how many blocks will leave memory next."""
        part = self._blocks.total // LEAVING
        return max(0, part - self._blocks.free)

    def _write_memory(self, key: bytes, serial: int, block: int, slot: int) -> None:
        """Writes a block, or the state behind it, if it is in the prefix cache still when it has been read."""
        if key in self.store:
            return
        buffers = self._network.block_buffers(block) if slot == NO_STATE else self._network.state_buffers(slot)
        copy = np.concatenate(buffers)
        if self._blocks.has(serial) and (slot == NO_STATE or self._states.checkpoint(serial) == slot):
            self._write(key, copy)


def _key(before: bytes, what: bytes) -> bytes:
    """Returns the key of a block from that of the block before it and its tokens."""
    return hashlib.blake2b(what, key=before, digest_size=32).digest()
