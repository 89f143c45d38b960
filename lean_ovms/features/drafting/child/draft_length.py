"""Decides how many draft tokens a sequence gets in a step, by how many of its last draft tokens were accepted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(slots=True)
class DraftLength:
    """Lengthens drafts that are accepted, shortens others, and pauses when even single draft tokens are rejected."""

    length: int
    """The tokens of the next draft."""
    growth: int = 2
    """The number of tokens by which a draft grows if all its tokens were accepted."""
    first_pause: int = 1
    """The number of steps without a draft after a draft of a single token is rejected for the first time."""
    longest_pause: int = 16
    """The most steps between two drafts of a sequence whose draft tokens are never accepted."""
    pause: int = 0
    """The steps of the last pause."""
    remaining: int = 0
    """The remaining steps of the current pause."""

    def next(self, most: int) -> int:
        """Returns the number of draft tokens for this step, at most `most`."""
        if self.remaining:
            self.remaining -= 1
            return 0
        return min(most, self.length)

    def compare(self, proposed: Seq[int], sampled: Seq[int]) -> None:
        """Updates the length by comparing a draft with the tokens that were sampled in its place.

        If the draft was cut short and the rest of it was accepted, nothing is known and the length stays.
        """
        decided = min(len(proposed), len(sampled))
        accepted = next((n for n in range(decided) if proposed[n] != sampled[n]), decided)
        if proposed and (accepted == len(proposed) or accepted < len(sampled)):
            self.learn(len(proposed), accepted)

    def learn(self, drafted: int, accepted: int) -> None:
        """Updates the length by the result of the last draft: `accepted` of `drafted` tokens were accepted."""
        if accepted:
            self.pause //= 2
            whole = accepted == drafted
            self.length = max(self.length, drafted + self.growth) if whole else (self.length + accepted) // 2
        elif self.length > 1:
            self.length //= 2
        else:
            self.remaining = self.pause = min(self.longest_pause, max(self.first_pause, 2 * self.pause))
