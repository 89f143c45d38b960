"""The interface of what guesses tokens ahead: prompt lookup and draft models.

Whether a guess is right is decided where the model's own token is known (`engine`): a guess is kept when it is the
token that would have been drawn there anyway, so answers are the same with and without guesses, sampled ones too.
"""

from __future__ import annotations

from typing import Protocol

from .sequence import Sequence


class Proposer(Protocol):
    """Guesses for the decoding sequences of one engine."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        """Set the guess of each of these sequences, of at most so many tokens; none may be right. Raises nothing."""
        ...

    def leave(self, sequence: Sequence) -> None:
        """The sequence is over or preempted: forget what is kept for it, if anything."""
        ...
