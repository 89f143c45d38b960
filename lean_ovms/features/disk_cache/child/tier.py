"""The prefix cache's tier on disk: evicted blocks are written, and prompts wait while their blocks are read.

While a sequence waits, others go on. Blocks that were read are ordinary blocks of the prefix cache. They are read only
if that takes less time than computing them, by the recent speeds of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ....engine.paged.block_manager import BlockManager, Parent
from ....engine.paged.network import Network
from ....engine.paged.parts import StepHook
from ....engine.paged.sequence import NO_STATE, Sequence
from ....engine.paged.state_checkpoints import StateCache
from ....engine.protocol import Record, ResetPrefixCache
from ..feature import CLOSE_S, METRIC
from ..records import DiskCacheAction
from .block_store import BlockStore
from .keys import BlockKeys, block_key, state_key
from .reader import BlockRead, BlockReader, Speed
from .segment import nbytes
from .writer import BlockWriter

QUEUED_READS = 8
"""The most prompts whose blocks are being read, or wait to be read."""
READ_WAIT_S = 0.005
"""Seconds between two looks for new requests while nothing can be computed before blocks are read."""
MOST_S, LEAST_S = 30.0, 0.5
"""The limit in seconds of a wait for blocks while the speed of computing is not known, and the least limit else."""


class DiskTier(StepHook):
    """The blocks of one engine that are kept on disk.

    The engine calls it before and after its steps, and the prefix cache reports the blocks that it adds and drops.
    """

    def __init__(self, store: BlockStore, network: Network, blocks: BlockManager, states: StateCache) -> None:
        """Starts the threads that read and write.

        Args:
            store: The blocks on disk.
            network: The network, with the cache in memory.
            blocks: The blocks in memory.
            states: The states in memory, of a hybrid network.
        """
        self.store = store
        self.hit_tokens = 0
        """Tokens whose blocks were read from disk since the start."""
        self._network = network
        self._blocks = blocks
        self._states = states
        self._block_bytes = nbytes(network.block_buffers(0))
        self._state_bytes = nbytes(network.state_buffers(0)) if states.total else 0
        self._keys = BlockKeys()
        self.writer = BlockWriter(store, network, blocks, states, self._keys)
        self.reader = BlockReader(store, network)
        self._reading: dict[Sequence, BlockRead] = {}
        self._abandoned: list[BlockRead] = []
        self._began = 0.0
        self._computing = Speed()

    def join(self, hooks: list[StepHook]) -> None:
        """Adds itself to the hooks of an engine."""
        hooks.append(self)
        self._blocks.watchers.append(self)
        self._states.replaced = self.state_evicted

    def stats(self) -> dict[str, float]:
        """Returns the values of the tier's metrics."""
        store, reader, writer = self.store, self.reader, self.writer
        return {
            f"{METRIC}hit_tokens_total": self.hit_tokens,
            f"{METRIC}bytes": store.size,
            f"{METRIC}read_bytes_total": reader.bytes,
            f"{METRIC}written_bytes_total": store.written_bytes,
            f"{METRIC}removed_bytes_total": store.removed_bytes,
            f"{METRIC}read_seconds_total": reader.seconds,
            f"{METRIC}write_seconds_total": writer.seconds,
            f"{METRIC}dropped_blocks_total": writer.dropped,
            f"{METRIC}errors_total": store.errors,
        }

    # --- block_manager.Watcher

    def registered(self, serial: int, parent: Parent, tokens: bytes) -> None:
        self._keys.add(serial, parent, tokens)

    def evicted(self, block: int, serial: int) -> None:
        self.state_evicted(serial)
        key = self._keys.pop(serial, None)
        self.writer.evicted(serial)
        if key is not None and key not in self.store:
            self.writer.copy(key, self._network.block_buffers(block))

    def spoiled(self, serial: int) -> None:
        self.writer.evicted(serial)
        if (key := self._keys.pop(serial, None)) is not None:
            self.writer.discard(key)
            self.writer.discard(state_key(key))

    def state_evicted(self, serial: int) -> None:
        """Handles the eviction of the state after a block, if there is one."""
        key, slot = self._keys.get(serial), self._states.checkpoint(serial)
        if key is not None and slot != NO_STATE and (key := state_key(key)) not in self.store:
            self.writer.copy(key, self._network.state_buffers(slot))

    def clearing(self) -> None:
        self.abandon_all()
        self._keys.clear()

    # --- StepHook

    def handle(self, command: Record) -> bool:
        """Starts saving or finding blocks for a command, whose answer comes from `poll`."""
        if isinstance(command, ResetPrefixCache) and command.external:
            self.writer.clear()
        elif isinstance(command, DiskCacheAction):
            self.writer.call(command)
            return True
        return False

    def close(self, seconds: float = CLOSE_S) -> None:
        """Writes the blocks that are only in memory, for at most `seconds`, and ends the threads."""
        self.reader.close()
        self.writer.close(seconds)

    def begin_step(self) -> None:
        """Notes the time at which a step begins."""
        self._began = time.monotonic()
        self.writer.busy = True

    def end_step(self, tokens: int) -> None:
        """Notes the time in which a step has computed `tokens` tokens."""
        self._computing.add(tokens, time.monotonic() - self._began)

    def rest(self) -> None:
        """Lets new blocks be written while nothing is computed, and waits for blocks that are being read."""
        self.writer.rest()
        if self.working:
            self.reader.wait(READ_WAIT_S)

    def give_back(self) -> None:
        """Frees the blocks that are allocated for reading, since a running sequence needs them."""
        if self.reading:
            self.abandon_all()

    # --- reading

    @property
    def reading(self) -> bool:
        return bool(self._reading or self._abandoned)

    @property
    def working(self) -> bool:
        """Whether blocks are being read, or a command to save blocks is being carried out."""
        return self.reading or bool(self.writer.calls or self.writer.answers)

    def must_wait(self, sequence: Sequence, root: Parent | None) -> bool:
        """Returns whether a sequence waits for blocks from disk, and begins to read them if that saves time."""
        if (read := self._reading.get(sequence)) is not None:
            if read.done.is_set() or time.monotonic() < read.until:
                return True  # `poll` completes a finished read
            self._abandon(sequence)
            return False
        if any(sequence in other.followers for other in self._reading.values()):
            return True
        if sequence.looked_up or root is None:
            return False
        if sequence.adapter is not None:
            self._keys.know(sequence.adapter)
        if not len(self.store) or sequence.needs_prompt_logprobs:
            return False
        wait = self._begin(sequence, root)
        sequence.looked_up = not wait
        return wait

    def poll(self) -> Iterable[Record]:
        """Puts what has been read into the prefix cache. Returns answers to commands that are done now."""
        if not self.working:
            return ()
        self._end_reads()
        return [self.writer.answers.popleft() for _ in range(len(self.writer.answers))]

    def _end_reads(self) -> None:
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

    def abandon_all(self) -> None:
        """Frees the blocks that are allocated for reading, since a running sequence needs them."""
        for sequence in list(self._reading):
            self._abandon(sequence)
        until = time.monotonic() + LEAST_S
        for read in self._abandoned:
            read.done.wait(max(0.0, until - time.monotonic()))
        self._end_reads()

    def _abandon(self, sequence: Sequence) -> None:
        read = self._reading.pop(sequence)
        read.cancelled = sequence.looked_up = True
        self._abandoned.append(read)

    def _begin(self, sequence: Sequence, root: Parent) -> bool:
        """Begins to read blocks for a sequence. Returns whether it waits for these, or for blocks already read."""
        size, ids, blocks, states = self._blocks.block_size, sequence.ids, self._blocks, self._states
        found = blocks.match(ids, 0, len(ids) - 1, root)
        chain = [serial for _, serial in found]
        usable = states.matched(chain)
        keys = self._known(sequence, chain, root)
        last = self._reachable(chain, keys, usable)
        cached, chain, keys = [block for block, _ in found[:last]], chain[:last], keys[: max(0, last - len(found))]
        blocks.release([block for block, _ in found[last:]])
        if last <= usable:
            blocks.release(cached)
            return False
        end = keys[-1] if keys else self._keys.get(chain[-1]) or b""
        state = state_key(end) if states.total else b""
        if self._follow(sequence, keys[0] if keys else state):
            blocks.release(cached)
            return True
        room = len(keys) <= blocks.available and len(self._reading) < QUEUED_READS
        read_bytes = len(keys) * self._block_bytes + self._state_bytes
        wait_s = self._worth((last - usable) * size, read_bytes) if room else 0.0
        if not wait_s:
            blocks.release(cached)
            return False
        self._reading[sequence] = read = BlockRead(
            chain=chain,
            parent=root,
            cached=cached,
            blocks=[blocks.allocate() for _ in keys],
            keys=keys,
            tokens=[ids[at * size : (at + 1) * size] for at in range(len(chain), last)],
            state_key=state,
            until=time.monotonic() + wait_s,
        )
        self.reader.begin(read)
        return True

    def _follow(self, sequence: Sequence, first: bytes) -> bool:
        """Has a sequence wait for the read of another one that includes this key; returns False if there is none."""
        for other in self._reading.values():
            if first == other.state_key or first in other.keys:
                other.followers.add(sequence)
                return True
        return False

    def _known(self, sequence: Sequence, chain: list[int], root: Parent) -> list[bytes]:
        """Returns the keys of a sequence's blocks on disk that follow its blocks in memory.

        Args:
            sequence: The sequence.
            chain: The serial numbers of its blocks in memory.
            root: The key that stands for the parent of its first block: the cache salt, and the adapter's key if any.
        """
        size, ids, keys = self._blocks.block_size, sequence.ids, list[bytes]()
        key = self._keys.get(chain[-1]) if chain else self._keys.root_key(root)
        for at in range(len(chain) * size, len(ids) - size, size):
            key = key and block_key(key, ids[at : at + size].tobytes())
            if not key or key not in self.store:
                break
            keys.append(key)
        return keys

    def _reachable(self, chain: list[int], keys: list[bytes], usable: int) -> int:
        """Returns how many of a sequence's first blocks can be used if those on disk are read.

        The blocks of a hybrid network can be used only up to a place whose state is kept, too: of these places it
        returns the last that is on disk, or else usable.

        Args:
            chain: The serial numbers of the sequence's blocks that are in memory.
            keys: The keys of the following blocks, which are on disk.
            usable: How many blocks can be used without the disk.
        """
        if not self._states.total:
            return len(chain) + min(len(keys), self._blocks.available)
        ends = [self._keys.get(serial) or b"" for serial in chain] + keys
        return next((n for n in range(len(ends), usable, -1) if state_key(ends[n - 1]) in self.store), usable)

    def _worth(self, tokens: int, size: int) -> float:
        """Returns how many seconds a sequence may wait to read `size` bytes instead of computing tokens, or 0."""
        computing, reading = self._computing.seconds(tokens), self.reader.speed.seconds(size)
        if computing is not None and reading is not None and reading >= computing:
            self.reader.speed.decay()
            return 0.0
        return MOST_S if computing is None else max(LEAST_S, computing)

    def _end(self, read: BlockRead) -> None:
        """Adds the blocks that were read to the prefix cache, and releases all references."""
        chain = list(read.chain)
        for block, tokens in zip(read.blocks[: read.read], read.tokens, strict=False):
            chain.append(self._blocks.register(block, tokens, chain[-1] if chain else read.parent))
            self.writer.written(chain[-1])
        self.hit_tokens += read.read * self._blocks.block_size
        if read.state and self._blocks.has(chain[-1]) and (slot := self._states.allocate()) != NO_STATE:
            for buffer, data in zip(self._network.state_buffers(slot), read.state, strict=True):
                buffer[:] = data
            self._states.add(chain, slot, "prompt")
            self._states.release(slot)
        self._blocks.release(read.cached + read.blocks)
