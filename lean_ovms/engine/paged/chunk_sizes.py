"""How much of a prompt a step computes, by the context that it attends to.

Each token of a chunk attends to all tokens before it: 256 tokens of the demo model take 11 ms at the beginning of a
prompt and 500 ms behind 31,000 others. So the time of a step is about b * tokens + d * attended, where attended is the
sum of the contexts of its tokens. b / d, the context at which attention takes as long as everything else, is 600 tokens
for the demo model and 1,000 for one of 195M parameters; it depends on the network, its attention windows and the
machine, so it is learned from steps.
"""

from __future__ import annotations

FIRST_REACH = 1024
"""The b / d, in tokens, that is assumed before anything is measured."""
NEAR = 512
"""A step whose tokens have a mean context below this many tokens updates b; any other step updates d."""
RATE = 0.1
MOST = 2
"""A measured b or d counts as at most MOST times the known one, and at least 1 / MOST of it: some steps take longer
because other work has the CPU."""


class ChunkSizes:
    """Chooses how many tokens of a prompt a step computes, by the work that they are.

    Work is time in units of b, the time of a token without context. reach: b / d, in tokens. step_tokens: of a whole
    step. block_size: tokens of a KV block.
    """

    def __init__(self, step_tokens: int, block_size: int) -> None:
        self._whole = step_tokens
        self._block_size = block_size
        self.forget()

    def forget(self) -> None:
        """Forgets what was measured, for example the first steps with a network, which take longer than all others."""
        self.reach = float(FIRST_REACH)
        self._linear = self._attention = 0.0  # b, d; 0: not known

    def work(self, start: int, tokens: int) -> int:
        """Returns the work of so many tokens that have `start` tokens before them."""
        return int(tokens * (1 + start / self.reach))

    def part(self, start: int, left: int, budget: int) -> tuple[int, int]:
        """Returns how many of a prompt's `left` tokens a step with this budget computes, and their work."""
        work = self.work(start, left)
        if work <= budget:
            return left, work
        return min(left, budget, self.tokens(start, budget)), budget  # a block may take more than all of it

    def tokens(self, start: int, work: int) -> int:
        """Returns the most tokens behind `start` others that take about so much work, at least to the end of a block.

        Chunks end where blocks do, so that prompts with a common prefix can share them; but the first fills its step.
        """
        most = max(self._block_size, int(work / (1 + start / self.reach)))
        return most - (start + most) % self._block_size if start else most

    def learn(self, tokens: int, attended: int, seconds: float) -> None:
        """Updates b or d from the time of a step with prompts. attended: the sum of its tokens' contexts.

        Small steps are ignored: a part of the time is the same for any size. b and d are updated by different steps,
        each with the known value of the other, so that neither is lost while only the other has steps.
        """
        if 2 * (tokens + attended / self.reach) < self._whole or seconds <= 0:
            return
        if not self._linear:
            self._linear = seconds / (tokens + attended / FIRST_REACH)
            self._attention = self._linear / FIRST_REACH
        if attended < NEAR * tokens:
            self._linear = _closer(self._linear, (seconds - self._attention * attended) / tokens)
        else:
            self._attention = _closer(self._attention, (seconds - self._linear * tokens) / attended)
        self.reach = self._linear / self._attention


def _closer(known: float, measured: float) -> float:
    return known + RATE * (min(MOST * known, max(known / MOST, measured)) - known)
