"""Reference counts of the KV cache's blocks, and the prefix cache, which finds blocks by the tokens in them.

A block holds `block_size` tokens. Full blocks are found by their tokens and all tokens before them: the key of a block
is the serial number of the preceding block (or the salt, for the first) with the block's own tokens. Keys are exact,
not hashes, so no text can be mistaken for another. Unreferenced blocks stay in the prefix cache until they are needed.
The one that was released longest ago is evicted first, and the end of a text before its beginning.

BlockTables has the blocks of the running sequences, one row each, so that a step's inputs are made without a loop.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .network import AdapterWeights

Parent = int | str | tuple[str, str]
"""The key of what precedes a block: the serial number of the preceding block, or for the first block of a sequence the
cache salt, together with the adapter's key if the sequence has an adapter."""


KEY_BYTES = 32
"""The size of a hash that `next_key` returns, in bytes."""


def next_key(before: bytes, what: bytes) -> bytes:
    """Returns a hash, equal in all processes, of a block's tokens (as int64) and the hash before, b"" at first."""
    return hashlib.blake2b(what, key=before, digest_size=KEY_BYTES).digest()


class OutOfBlocks(Exception):
    """Raised if no block is free. The caller has to make room first."""


class Watcher(Protocol):
    """Observes which blocks enter and leave the prefix cache, to save evicted blocks or to publish the changes."""

    def registered(self, serial: int, parent: Parent, tokens: bytes) -> None:
        """Is called when a block has been added to the prefix cache."""

    def evicted(self, block: int, serial: int) -> None:
        """Is called when a block is evicted from the prefix cache. Its content is still valid."""

    def spoiled(self, serial: int) -> None:
        """Is called when a block leaves the prefix cache because of wrong content, which must not be saved."""

    def clearing(self) -> None:
        """Is called before the prefix cache is emptied; `evicted` follows for each block, which must not be saved."""


class BlockManager:
    """Counts the references to blocks, and implements the prefix cache."""

    def __init__(self, total: int, block_size: int, evicted: Callable[[int], None] = lambda serial: None) -> None:
        """Begins with all blocks free.

        Args:
            total: The number of blocks.
            block_size: The number of tokens in a block.
            evicted: Called with the serial number of each block that leaves the prefix cache, after the watchers.
        """
        self.total = total
        self.block_size = block_size
        self.watchers: list[Watcher] = []
        """The features' observers of the prefix cache."""
        self._free: list[int] = []  # of those that were in use; others are known when they are first used
        self._holders: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # in the prefix cache, without a holder, oldest first
        self._keys: list[tuple[Parent, bytes] | None] = []
        self._found: dict[tuple[Parent, bytes], tuple[int, int]] = {}  # key -> block, serial number
        self._serial = 0
        self._serials: set[int] = set()  # of the blocks in the prefix cache
        self._evicted = evicted

    @property
    def available(self) -> int:
        """The number of blocks that `allocate` can return, including evictable ones."""
        return self.free + len(self._idle)

    @property
    def free(self) -> int:
        """The number of blocks that are neither referenced nor cached."""
        return self.total - len(self._holders) + len(self._free)

    def blocks(self, tokens: int) -> int:
        """Returns the number of blocks that this number of tokens takes."""
        return -(-tokens // self.block_size)

    def allocate(self) -> int:
        """Returns a block of undefined content, from the prefix cache if none is free. Raises OutOfBlocks."""
        if self._free:
            block = self._free.pop()
        elif len(self._holders) < self.total:
            block = len(self._holders)
            self._holders.append(0)
            self._keys.append(None)
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._unregister(block)
        else:
            raise OutOfBlocks
        self._holders[block] = 1
        return block

    def share(self, blocks: Sequence[int]) -> None:
        """Adds one reference to each of these blocks."""
        for block in blocks:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Removes one reference from each of these blocks, which are in the order of their sequence."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            assert self._holders[block] >= 0
            if self._holders[block]:
                continue
            if self._keys[block] is None:
                self._free.append(block)
            else:
                self._idle[block] = None

    # --- the prefix cache

    def has(self, serial: int) -> bool:
        """Returns whether the block with a serial number is in the prefix cache; others may have the same tokens."""
        return serial in self._serials

    def match(self, tokens: array[int], start: int, end: int, parent: Parent) -> list[tuple[int, int]]:
        """Finds the longest cached prefix of tokens[start:end] that consists of whole blocks.

        Args:
            tokens: The tokens of a text.
            start: The index of the first token, at the beginning of a block.
            end: The index after the last token to look for.
            parent: The key of what precedes tokens[start].

        Returns:
            The blocks with their serial numbers. The caller receives a reference to each block.
        """
        size, found = self.block_size, []
        for at in range(start, end - size + 1, size):
            hit = self._found.get((parent, tokens[at : at + size].tobytes()))
            if hit is None:
                break
            found.append(hit)
            parent = hit[1]
        self.share([block for block, _ in found])
        return found

    def register(self, block: int, tokens: array[int], parent: Parent) -> int:
        """Adds a block with these tokens to the prefix cache, where `match` still finds an equal one that is there.

        Args:
            block: The number of the block.
            tokens: The tokens of a full block.
            parent: The key of what precedes them.

        Returns:
            The serial number of the block, which is the parent of the next block.
        """
        key = (parent, tokens.tobytes())
        hit = self._found.get(key)
        if hit is None:
            self._serial += 1
            hit = (block, self._serial)
            self._found[key], self._keys[block] = hit, key
            self._serials.add(self._serial)
            for watcher in self.watchers:
                watcher.registered(self._serial, *key)
        return hit[1]

    def register_all(self, blocks: list[int], text: array[int], tokens: int, chain: list[int], root: Parent) -> None:
        """Adds those full blocks of a sequence to the prefix cache that have not been added yet.

        Args:
            blocks: The blocks of the sequence.
            text: The tokens of the sequence.
            tokens: The number of computed tokens.
            chain: The serial numbers of the blocks added so far; those of the new ones are appended.
            root: The parent of the first block.
        """
        size = self.block_size
        while (len(chain) + 1) * size <= tokens:
            at = len(chain)
            parent = chain[-1] if at else root
            chain.append(self.register(blocks[at], text[at * size : (at + 1) * size], parent))

    def cached(self, leaving: int | None = None) -> list[tuple[int, int]]:
        """Returns cached blocks with their serial numbers in the order of eviction. Any thread may call it.

        These are the next `leaving` unreferenced blocks; all cached blocks if it is None.
        """
        found = dict(list(self._found.values()))
        idle = list(self._idle)[:leaving]
        if leaving is None:
            idle += found.keys() - idle
        return [(block, found[block]) for block in idle if block in found]

    def clear_cache(self) -> None:
        """Empties the prefix cache. Blocks that sequences use are not freed."""
        for watcher in self.watchers:
            watcher.clearing()
        for block in [*self._idle, *(b for b, count in enumerate(self._holders) if count)]:
            self._unregister(block)
        self._free += list(self._idle)
        self._idle.clear()

    def drop(self, blocks: Sequence[int]) -> int:
        """Removes those of the given blocks that no sequence uses from the prefix cache. Returns their number."""
        idle = [block for block in blocks if block in self._idle]
        for block in idle:
            del self._idle[block]
            self._unregister(block)
        self._free += idle
        return len(idle)

    def spoil(self, serials: Sequence[int]) -> None:
        """Removes blocks with wrong content, and all cached blocks that follow them, from the prefix cache."""
        gone = set[int | str | tuple[str, str]](serials)
        for (parent, _), (block, serial) in list(self._found.items()):  # a parent is before its children
            if serial in gone or parent in gone:
                gone.add(serial)
                self._unregister(block, spoiled=True)
                if block in self._idle:
                    del self._idle[block]
                    self._free.append(block)

    def _unregister(self, block: int, *, spoiled: bool = False) -> None:
        key = self._keys[block]
        if key is not None:
            _, serial = self._found.pop(key)
            self._keys[block] = None
            self._serials.remove(serial)
            for watcher in self.watchers:
                if spoiled:
                    watcher.spoiled(serial)
                else:
                    watcher.evicted(block, serial)
            self._evicted(serial)


class BlockTables:
    """The block tables of the running sequences, one row each, with further values that a decode step needs."""

    def __init__(self, rows: int, context: int, block_size: int) -> None:
        """Creates tables whose rows are all free.

        Args:
            rows: The most sequences that run at once.
            context: The most tokens of a sequence.
            block_size: The number of tokens in a block.
        """
        self.block_size = block_size
        self.table = np.zeros((rows, self.blocks(context) + 2), np.int32)
        """The block numbers, [rows, most blocks of a sequence]. Only the first `num_blocks` of a row are valid."""
        self.computed = np.zeros(rows, np.int32)
        """The number of tokens of each row whose keys and values are in the KV cache."""
        self.num_blocks = np.zeros(rows, np.int32)
        """The number of blocks of each row."""
        self.newest = np.zeros(rows, np.int64)
        """The newest token of each row, which the next decode step computes."""
        self.states = np.zeros((rows, 2), np.int32)
        """The slots from which a decode step reads a hybrid's state, and to which it writes it, [rows, 2]."""
        self.shift = np.zeros(rows, np.int32)
        """The offset of each row's positions from the token indices; not 0 after images with rows and columns."""
        self.adapters: list[AdapterWeights | None] = [None] * rows
        """The adapter of each row, or None."""
        self._columns = np.arange(self.table.shape[1], dtype=np.int32)
        self._free = list(range(rows - 1, -1, -1))
        self.total = rows

    def blocks(self, tokens: int) -> int:
        """Returns the number of blocks that this number of tokens takes."""
        return -(-tokens // self.block_size)

    @property
    def available(self) -> int:
        """The number of free rows."""
        return len(self._free)

    def allocate(self, blocks: list[int], adapter: AdapterWeights | None = None, shift: int = 0) -> int:
        """Returns a row for a sequence.

        Args:
            blocks: The full blocks of its KV cache.
            adapter: Its adapter, or None.
            shift: The offset of a new token's position from its index.
        """
        row = self._free.pop()
        self.num_blocks[row] = 0
        self.adapters[row], self.shift[row] = adapter, shift
        self.append(row, blocks)
        self.computed[row] = len(blocks) * self.block_size
        return row

    def free(self, row: int) -> None:
        self._free.append(row)

    def append(self, row: int, blocks: list[int]) -> None:
        num_blocks = int(self.num_blocks[row])
        self.table[row, num_blocks : num_blocks + len(blocks)] = blocks
        self.num_blocks[row] = num_blocks + len(blocks)

    def copy(self, source: int, target: int) -> None:
        """Copies a row, except its adapter; the caller replaces the last block, to which both would write."""
        for column in (self.table, self.computed, self.num_blocks, self.newest, self.shift):
            column[target] = column[source]

    def full(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the indices in `rows` of the sequences that need another block for their next token."""
        return np.flatnonzero(self.computed[rows] >= self.num_blocks[rows] * self.block_size)

    def tables(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the blocks of these rows, concatenated."""
        num_blocks = self.num_blocks[rows]
        widest = int(num_blocks.max(initial=0))
        flat: NDArray[np.int32] = self.table[rows, :widest][self._columns[:widest] < num_blocks[:, None]]
        return flat
