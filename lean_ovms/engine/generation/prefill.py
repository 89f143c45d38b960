"""Prompts that were given to the pipeline and are not computed yet, and about how much of them is left.

Most pipelines compute prompts in the order in which they were added. Once more of them are there than a step takes,
adding another one gains nothing, but everybody's next prompt waits behind it: a client has then to wait with more. In
one that shares its steps, a long prompt leaves half of each to prompts that fit into it: those wait for one another
alone, or a chat of ten tokens would wait until the whole of a long prompt of the same client has been read.
"""

from __future__ import annotations

from typing import cast

from .pipeline import ProgressHandle
from .sequence import Sequence


class PrefillQueue:
    """step_tokens: most tokens of a step. each: those that a sequence takes of it once its prompt is computed.

    shares_steps: short prompts are computed beside long ones. progress: handles are ProgressHandles, so what is left
    is known between steps: a step may compute less of a long prompt than fits into it.
    """

    def __init__(self, step_tokens: int, each: int, *, shares_steps: bool = False, progress: bool = False) -> None:
        self.left = 0
        self.shares_steps = shares_steps
        self._step_tokens = step_tokens
        self._each = each
        self._progress = progress
        self._left: dict[Sequence, int] = {}  # in the order in which they were added

    def __len__(self) -> int:
        return len(self._left)

    def add(self, sequence: Sequence, tokens: int) -> None:
        """A prompt of so many tokens that are probably not in the prefix cache."""
        self._left[sequence] = tokens
        self.left += tokens

    def remove(self, sequence: Sequence) -> None:
        """Its prompt is computed, or it has left the pipeline."""
        self.left -= self._left.pop(sequence)

    def full(self, running: int) -> bool:
        """There are enough prompts for the next step, with so many sequences in the pipeline."""
        return self.left >= self._budget(running)

    def waits(self, sequence: Sequence, running: int) -> bool:
        """Whether a sequence would only wait for those of its client that are there already."""
        half = self._half(running)
        short = [tokens for tokens in self._left.values() if tokens <= half]
        alone = len(short) == len(self._left)  # no long one of which a step would be half
        if not self.shares_steps or sequence.length > half or alone:
            return self.full(running)
        return sum(short) >= half

    def step(self, running: int) -> None:
        """A step computes some of it."""
        if self._progress:
            self._look()
        budget, half = self._budget(running), self._half(running)
        prompts = list(self._left.items())
        if self.shares_steps:
            prompts.sort(key=lambda prompt: prompt[1] > half)
        for sequence, tokens in prompts:
            if budget <= 0:
                break
            done = min(tokens, budget)
            self._left[sequence] -= done
            self.left -= done
            budget -= done

    def _look(self) -> None:
        """What is really left of those that were begun. Of others, more may be in the prefix cache than is computed."""
        for sequence in self._left:
            computed = cast(ProgressHandle, sequence.handle).computed
            if computed:
                self._left[sequence] = max(0, sequence.length - computed)
        self.left = sum(self._left.values())

    def _half(self, running: int) -> int:
        return max(1, self._budget(running) // 2)

    def _budget(self, running: int) -> int:
        return self._step_tokens - (running - len(self._left)) * self._each
