"""Prompts that were given to the pipeline and are not computed yet, and about how much of them is left.

The pipeline computes prompts in the order in which they were added. Once more of them are there than a step takes,
adding another one gains nothing, but everybody's next prompt waits behind it: a client has then to wait with more.
"""

from __future__ import annotations

from ...generation.sequence import ClientQueue
from .sequence import GuardedSequence


class PrefillQueue:
    """step_tokens: most tokens of a step. each: those that a sequence takes of it once its prompt is computed."""

    def __init__(self, step_tokens: int, each: int) -> None:
        self.left = 0
        self._step_tokens = step_tokens
        self._each = each
        self._left: dict[GuardedSequence, int] = {}  # in the order in which they were added

    def __len__(self) -> int:
        return len(self._left)

    def add(self, sequence: GuardedSequence, tokens: int) -> None:
        """A prompt of so many tokens that are probably not in the prefix cache."""
        self._left[sequence] = tokens
        self.left += tokens

    def remove(self, sequence: GuardedSequence) -> None:
        """Its prompt is computed, or it has left the pipeline."""
        self.left -= self._left.pop(sequence)

    def of(self, client: ClientQueue) -> bool:
        """Whether there is a prompt of a client."""
        return any(sequence.client is client for sequence in self._left)

    def full(self, running: int) -> bool:
        """There are enough prompts for the next step, with so many sequences in the pipeline."""
        return self.left >= self._budget(running)

    def step(self, running: int) -> None:
        """A step computes some of it."""
        budget = self._budget(running)
        for sequence, tokens in self._left.items():
            if budget <= 0:
                break
            done = min(tokens, budget)
            self._left[sequence] -= done
            self.left -= done
            budget -= done

    def _budget(self, running: int) -> int:
        return self._step_tokens - (running - len(self._left)) * self._each
