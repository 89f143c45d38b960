"""The child's own accounts of the KV cache, in blocks. Knows no pipeline.

GenAI answers an exhausted cache by ending every running request without output, innocent ones included. So nobody may
ever reach that point: each sequence is booked here with the blocks that it will hold after the next step, shared
prefixes counted once per holder (an upper bound of what the pipeline really uses), and the sum stays within the cache.
"""

from __future__ import annotations


class KvBudget:
    """Blocks booked by live sequences."""

    def __init__(self, total_blocks: int, block_size: int) -> None:
        self.total = total_blocks
        self.block_size = block_size
        self.used = 0
        self.taken = 0  # since the start: no fewer blocks than the pipeline has really given out

    @property
    def tokens(self) -> int:
        """Tokens that the whole cache holds."""
        return self.total * self.block_size

    def blocks(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_size)

    def take(self, blocks: int) -> None:
        """Book blocks; `over` tells whether that was too much."""
        self.used += blocks
        self.taken += blocks

    def give(self, blocks: int) -> None:
        """Book them out."""
        self.used -= blocks
        assert self.used >= 0

    @property
    def certain(self) -> int:
        """A block that is given out from now on is in the cache for as long as `taken` stays below this.

        The pipeline overwrites the block that was given out longest ago among those that nobody holds. Before it comes
        to this one, all others are held by who holds them now, or were given out later.
        """
        return self.taken + self.total - self.used - 1

    @property
    def over(self) -> bool:
        """More is booked than exists: the next step must not run before somebody left."""
        return self.used > self.total
