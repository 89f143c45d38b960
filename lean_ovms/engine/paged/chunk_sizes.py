"""How much of a prompt a step computes, by the context that it attends to.

Each token of a chunk attends to all tokens before it: 256 tokens of the demo model take 11 ms at the beginning of a
prompt and 500 ms behind 31,000 others. So the time of a step is about b * tokens + d * attended, where attended is the
sum of the contexts of its tokens. b / d, the context at which attention takes as long as everything else, is 600 tokens
for the demo model and 1,000 for one of 195M parameters; it depends on the network, its attention windows and the
machine, so it is learned from steps.
"""

from __future__ import annotations

GUESS = 1024
"""Tokens: b / d before anything is learned."""
NEAR = 512
"""The mean context of a step's tokens below which b is learned from it; from the others d."""
RATE = 0.1
MOST = 2
"""A step counts for at most so many times what was expected: some take longer than they need, beside other work."""


class ChunkSizes:
    """The work of a step is its time in units of b, a token without context. reach: b / d, in tokens.

    step_tokens: of a whole step. block_size: of the KV cache.
    """

    def __init__(self, step_tokens: int, block_size: int) -> None:
        self._whole = step_tokens
        self._block_size = block_size
        self.forget()

    def forget(self) -> None:
        """What was learned is not true any more: the first steps with a network take longer than all others."""
        self.reach = float(GUESS)
        self._linear = self._attention = 0.0  # b, d; 0: not known

    def work(self, start: int, tokens: int) -> int:
        """Of so many tokens with `start` tokens before them."""
        return int(tokens * (1 + start / self.reach))

    def part(self, start: int, left: int, budget: int) -> tuple[int, int]:
        """How many of the tokens left of a prompt a step with this budget computes, and how much of it they take."""
        work = self.work(start, left)
        if work <= budget:
            return left, work
        return min(left, budget, self.tokens(start, budget)), budget  # a block may take more than all of it

    def tokens(self, start: int, work: int) -> int:
        """The most tokens behind `start` others that take about so much work, at least to the end of a block.

        Chunks end where blocks do, for texts that begin alike; but the first one fills its step.
        """
        most = max(self._block_size, int(work / (1 + start / self.reach)))
        return most - (start + most) % self._block_size if start else most

    def learn(self, tokens: int, attended: int, seconds: float) -> None:
        """A step with prompts took so long. Small ones teach nothing: a part of the time is the same for any size.

        b and d are learned from different steps, each with the other as it is known, so none is forgotten while only
        the other has steps.
        """
        if 2 * (tokens + attended / self.reach) < self._whole or seconds <= 0:
            return
        if not self._linear:
            self._linear = seconds / (tokens + attended / GUESS)
            self._attention = self._linear / GUESS
        if attended < NEAR * tokens:
            self._linear = _closer(self._linear, (seconds - self._attention * attended) / tokens)
        else:
            self._attention = _closer(self._attention, (seconds - self._linear * tokens) / attended)
        self.reach = self._linear / self._attention


def _closer(known: float, measured: float) -> float:
    return known + RATE * (min(MOST * known, max(known / MOST, measured)) - known)
