"""Block tables of the running sequences, one row each, so that a step's inputs are made without a loop over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .params import Params

if TYPE_CHECKING:
    from .adapters import AdapterWeights

TEXT = Params()
"""The parameters of a sequence without an adapter and images."""


class BlockTables:
    """The block table of each running sequence, by row, with what else a decode step needs of it."""

    def __init__(self, rows: int, context: int, block_size: int) -> None:
        """Begins with all rows free.

        Args:
            rows: the most sequences that run at once.
            context: the most tokens of a sequence.
            block_size: the tokens of a block.
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

    def allocate(self, blocks: list[int], params: Params = TEXT) -> int:
        """Returns a row for a sequence whose KV cache has these full blocks."""
        row = self._free.pop()
        self.num_blocks[row] = 0
        self.adapters[row], self.shift[row] = params.adapter, params.shift
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
        for array in (self.table, self.computed, self.num_blocks, self.newest, self.shift):
            array[target] = array[source]

    def full(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the places in `rows` of sequences whose next token needs one more block."""
        return np.flatnonzero(self.computed[rows] >= self.num_blocks[rows] * self.block_size)

    def tables(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the blocks of these rows, concatenated."""
        num_blocks = self.num_blocks[rows]
        widest = int(num_blocks.max(initial=0))
        flat: NDArray[np.int32] = self.table[rows, :widest][self._columns[:widest] < num_blocks[:, None]]
        return flat
