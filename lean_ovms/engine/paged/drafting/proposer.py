"""The interface of what drafts tokens for all sequences of an engine at once: a draft model, or a head of the model.

Whether a draft token is right is decided where the model's own token is known (`engine`): it is kept when it is the
token that would have been sampled there anyway, so completions are the same with and without drafts.
"""

from __future__ import annotations

from typing import Protocol

from ..model_inputs import Chunk
from ..sequence import Sequence


class Proposer(Protocol):
    """Proposes draft tokens for the decoding sequences of one engine."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        """Sets the draft tokens of each of these sequences, at most so many; all may be wrong. Raises nothing."""
        ...

    def computed(self, decoding: int, chunks: list[Chunk]) -> None:
        """Takes what it needs of a step that was computed: so many tokens of decoding sequences, then these chunks."""
        ...

    def leave(self, sequence: Sequence) -> None:
        """Frees what is kept for a sequence, if anything: it is over or preempted."""
        ...
