"""Decides how many draft tokens a sequence gets in a step, by how many of its last ones were accepted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(slots=True)
class DraftLength:
    """Lengthens drafts that are accepted, shortens others, and pauses where single draft tokens are rejected."""

    length: int
    """The tokens of the next draft."""
    growth: int = 2
    """How much longer it gets where all tokens were accepted."""
    first_pause: int = 1
    """The steps without a draft after the first draft of a single token that is rejected."""
    longest_pause: int = 16
    """The most steps between two drafts of a sequence whose draft tokens are never accepted."""
    pause: int = 0
    """The steps of the last pause."""
    remaining: int = 0
    """The steps of it that are still to come."""

    def next(self, most: int) -> int:
        """Returns how many tokens to draft in this step, at most `most`."""
        if self.remaining:
            self.remaining -= 1
            return 0
        return min(most, self.length)

    def compare(self, proposed: Seq[int], sampled: Seq[int]) -> None:
        """Updates the length from a draft and the tokens that were sampled in its place, as far as they decide on it.

        They do not where the draft was cut short, and all that was left of it was accepted.
        """
        decided = min(len(proposed), len(sampled))
        accepted = next((n for n in range(decided) if proposed[n] != sampled[n]), decided)
        if proposed and (accepted == len(proposed) or accepted < len(sampled)):
            self.learn(len(proposed), accepted)

    def learn(self, drafted: int, accepted: int) -> None:
        """Updates the length from the last draft: `drafted` tokens, of which the first `accepted` were accepted."""
        if accepted:
            self.pause //= 2
            whole = accepted == drafted
            self.length = max(self.length, drafted + self.growth) if whole else (self.length + accepted) // 2
        elif self.length > 1:
            self.length //= 2
        else:
            self.remaining = self.pause = min(self.longest_pause, max(self.first_pause, 2 * self.pause))
