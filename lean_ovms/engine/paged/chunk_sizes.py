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
MEMORY = 0.98
"""What a step counts for once there is a newer one; 50 of them count for most of it."""
DOUBT = 0.002
"""How much GUESS counts beside them. It decides as long as no step has a context of some hundred tokens."""


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
        self._sums = [0.0] * 5

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

        Least squares of the relative error, so a step that something else delayed counts little.
        """
        if 2 * (tokens + attended / self.reach) < self._whole or seconds <= 0:
            return
        u, v = tokens / seconds, attended / seconds
        self._sums = [MEMORY * old + new for old, new in zip(self._sums, (u * u, u * v, v * v, u, v), strict=True)]
        uu, uv, vv, ones_u, ones_v = self._sums
        guess = DOUBT * uu
        uu, uv, vv = uu + guess, uv - guess * GUESS, vv + guess * GUESS * GUESS
        linear, attention = vv * ones_u - uv * ones_v, uu * ones_v - uv * ones_u
        if linear > 0:
            self.reach = linear / attention if attention > 0 else float("inf")
