"""The interface of what drafts tokens: prompt lookup and draft models.

Whether a draft token is right is decided where the model's own token is known (`engine`): it is kept when it is the
token that would have been sampled there anyway, so completions are the same with and without drafts.
"""

from __future__ import annotations

from typing import Protocol

from .sequence import Sequence


class Proposer(Protocol):
    """Draft tokens for the decoding sequences of one engine."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        """Set the draft tokens of each of these sequences, at most so many; none may be right. Raises nothing."""
        ...

    def leave(self, sequence: Sequence) -> None:
        """The sequence is over or preempted: forget what is kept for it, if anything."""
        ...
