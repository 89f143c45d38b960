"""How much of the KV cache is booked, in blocks. Knows no pipeline.

GenAI handles an exhausted cache by ending every running request without output, innocent ones included. So that point
must never be reached: each sequence is booked with the blocks that it will hold after the next step, shared prefixes
counted once per holder (an upper bound of what the pipeline really uses), and the sum stays within the cache.
"""

from __future__ import annotations


class KvBudget:
    """Blocks booked by the running sequences."""

    def __init__(self, total_blocks: int, block_size: int) -> None:
        self.total = total_blocks
        self.block_size = block_size
        self.used = 0
        self.allocated = 0  # since the start: at least as many blocks as the pipeline has really allocated

    @property
    def tokens(self) -> int:
        """Tokens that the whole cache holds."""
        return self.total * self.block_size

    def blocks(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def allocate(self, blocks: int) -> None:
        """Book blocks; the result may be `exceeded`."""
        self.used += blocks
        self.allocated += blocks

    def free(self, blocks: int) -> None:
        """The opposite of allocate."""
        self.used -= blocks
        assert self.used >= 0

    @property
    def reused_after(self) -> int:
        """A block that is allocated from now on stays in the cache for as long as `allocated` is below this.

        The pipeline overwrites the free block that was allocated longest ago. Before it comes to this one, all others
        are held by their present holders, or were allocated later.
        """
        return self.allocated + self.total - self.used - 1

    @property
    def exceeded(self) -> bool:
        """More is booked than exists: a sequence must be preempted before the next step."""
        return self.used > self.total
