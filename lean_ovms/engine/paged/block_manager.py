"""Reference counts of the KV cache's blocks, and the prefix cache: which blocks hold which prefix. No openvino.

A block holds `block_size` tokens. Full blocks are found again by the tokens in them and all that comes before: the key
of a block is the serial number of the block before it (or the salt, for the first) and its own tokens. Keys are exact,
not hashes of tokens, so no text can be taken for another. Blocks without a holder stay in the prefix cache until
they are needed; the one that was released longest ago goes first, and the end of a text before its beginning.

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
"""What comes before a block: the serial number of the block before it, or for a sequence's first block the cache salt,
with the key of the adapter if the sequence has one."""


KEY_BYTES = 32
"""Bytes of what `next_key` returns."""


def next_key(before: bytes, what: bytes) -> bytes:
    """Returns a hash of a block's tokens and all before them, which other processes and servers have as well.

    Args:
        before: The hash of the block before; empty if there is none.
        what: The bytes of the tokens, int64 each.
    """
    return hashlib.blake2b(what, key=before, digest_size=KEY_BYTES).digest()


class OutOfBlocks(Exception):
    """Raised when no block is free; the caller has to make room first."""


class Watcher(Protocol):
    """Follows what enters and leaves the prefix cache, to keep what leaves it, or to let others know."""

    def registered(self, serial: int, parent: Parent, tokens: bytes) -> None:
        """Is told of a block that is in the prefix cache now."""

    def evicted(self, block: int, serial: int) -> None:
        """Is told of a block that leaves the prefix cache; its content is there still."""

    def spoiled(self, serial: int) -> None:
        """Is told of a block that leaves the prefix cache because its content is wrong; it is nowhere to be kept."""

    def clearing(self) -> None:
        """Is told that all blocks leave the prefix cache, each of which follows; they are not to be kept."""


class BlockManager:
    """Counts the references to blocks, and keeps the prefix cache."""

    def __init__(self, total: int, block_size: int, evicted: Callable[[int], None] = lambda serial: None) -> None:
        """Begins with all blocks free.

        Args:
            total: The number of blocks.
            block_size: The tokens of a block.
            evicted: Called with the serial number of each block that leaves the prefix cache, after the watchers.
        """
        self.total = total
        self.block_size = block_size
        self.watchers: list[Watcher] = []
        """What features follow the prefix cache with."""
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
        """Blocks that `allocate` can give."""
        return self.free + len(self._idle)

    @property
    def free(self) -> int:
        """Blocks that are in no use at all."""
        return self.total - len(self._holders) + len(self._free)

    def blocks(self, tokens: int) -> int:
        """Returns how many blocks so many tokens take."""
        return -(-tokens // self.block_size)

    def allocate(self) -> int:
        """Returns a block for one sequence; its content is undefined. Raises OutOfBlocks."""
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
        """Counts one more reference to each of these blocks."""
        for block in blocks:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Counts one reference less to each of these blocks.

        Args:
            blocks: The numbers of the blocks, in the order of the sequence.
        """
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
        """Returns whether the block of a serial number is in the prefix cache.

        A sequence can outlive it: the block may be another's, with the same prefix.
        """
        return serial in self._serials

    def match(self, tokens: array[int], start: int, end: int, parent: Parent) -> list[tuple[int, int]]:
        """Finds the longest known prefix of tokens[start:end] that is made of whole blocks.

        Args:
            tokens: The tokens of a text.
            start: The first token of a block.
            end: The first token that is not looked for.
            parent: What comes before tokens[start].

        Returns:
            The blocks and their serial numbers; the caller has a reference to each.
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
        """Records that a block has these tokens. If another has the same prefix already, `match` goes on finding that.

        Args:
            block: The block.
            tokens: Its tokens, as many as a block has.
            parent: What comes before them.

        Returns:
            The serial number by which the next block names its parent.
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
        """Registers the full blocks of a sequence that are not registered yet.

        Args:
            blocks: The blocks of the sequence.
            text: The tokens of the sequence.
            tokens: How many of them are computed.
            chain: The serial numbers of the blocks that are registered already; those of the others are added.
            root: The parent of the first block.
        """
        size = self.block_size
        while (len(chain) + 1) * size <= tokens:
            at = len(chain)
            parent = chain[-1] if at else root
            chain.append(self.register(blocks[at], text[at * size : (at + 1) * size], parent))

    def cached(self, leaving: int | None = None) -> list[tuple[int, int]]:
        """Returns blocks of the prefix cache with their serial numbers, in the order in which they will leave it.
        Another thread may call it.

        Args:
            leaving: How many are returned, of those that no sequence uses; None: all blocks.
        """
        found = dict(list(self._found.values()))
        idle = list(self._idle)[:leaving]
        if leaving is None:
            idle += found.keys() - idle
        return [(block, found[block]) for block in idle if block in found]

    def clear_cache(self) -> None:
        """Empties the prefix cache. Blocks that sequences use stay theirs."""
        for watcher in self.watchers:
            watcher.clearing()
        for block in [*self._idle, *(b for b, count in enumerate(self._holders) if count)]:
            self._unregister(block)
        self._free += list(self._idle)
        self._idle.clear()

    def drop(self, blocks: Sequence[int]) -> int:
        """Drops those of these cached blocks that no sequence uses from the prefix cache. Returns their number."""
        idle = [block for block in blocks if block in self._idle]
        for block in idle:
            del self._idle[block]
            self._unregister(block)
        self._free += idle
        return len(idle)

    def spoil(self, serials: Sequence[int]) -> None:
        """Drops blocks with wrong content from the prefix cache, and those that come after them in any text."""
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
    """The block table of each running sequence, by row, with what else a decode step needs of it."""

    def __init__(self, rows: int, context: int, block_size: int) -> None:
        """Begins with all rows free.

        Args:
            rows: The most sequences that run at once.
            context: The most tokens of a sequence.
            block_size: The tokens of a block.
        """
        self.block_size = block_size
        self.table = np.zeros((rows, self.blocks(context) + 2), np.int32)
        """Block numbers, [rows, most blocks of a sequence]; only the first `num_blocks` of a row are valid."""
        self.computed = np.zeros(rows, np.int32)
        """The tokens whose keys and values are in the KV cache."""
        self.num_blocks = np.zeros(rows, np.int32)
        """The blocks of each row."""
        self.newest = np.zeros(rows, np.int64)
        """The newest token, which a decode step computes."""
        self.states = np.zeros((rows, 2), np.int32)
        """The slots that a decode step of a hybrid network reads the state from and writes it to, [rows, 2]."""
        self.shift = np.zeros(rows, np.int32)
        """How far a new token's position is from its place in the text, behind images with rows and columns."""
        self.adapters: list[AdapterWeights | None] = [None] * rows
        """The adapter of each row."""
        self._columns = np.arange(self.table.shape[1], dtype=np.int32)
        self._free = list(range(rows - 1, -1, -1))
        self.total = rows

    def blocks(self, tokens: int) -> int:
        """Returns how many blocks so many tokens take."""
        return -(-tokens // self.block_size)

    @property
    def available(self) -> int:
        """Rows that `allocate` can give."""
        return len(self._free)

    def allocate(self, blocks: list[int], adapter: AdapterWeights | None = None, shift: int = 0) -> int:
        """Returns a row for a sequence.

        Args:
            blocks: The full blocks of its KV cache.
            adapter: Its adapter.
            shift: How far a new token's position is from its place in the text.
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
        """Copies a row but for its adapter; the caller replaces the last block, which both sequences would write to."""
        for column in (self.table, self.computed, self.num_blocks, self.newest, self.shift):
            column[target] = column[source]

    def full(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the places in `rows` of sequences whose next token needs one more block."""
        return np.flatnonzero(self.computed[rows] >= self.num_blocks[rows] * self.block_size)

    def tables(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the blocks of these rows, concatenated."""
        num_blocks = self.num_blocks[rows]
        widest = int(num_blocks.max(initial=0))
        flat: NDArray[np.int32] = self.table[rows, :widest][self._columns[:widest] < num_blocks[:, None]]
        return flat
