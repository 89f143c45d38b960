"""Counts of draft tokens: those of a draft model, of prompt lookup, or of a pipeline that has either inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

POSITIONS = 20
"""Places of a draft that are counted one by one: requests choose how long drafts are, and each is a series."""


@dataclass(slots=True)
class SpecDecodeStats:
    """drafts: with at least one token, verified. drafted: their tokens; None: not known. accepted: those kept.

    by_position: accepted tokens by their place in the draft, the first POSITIONS.
    """

    drafts: int = 0
    drafted: int | None = None
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)

    def begin(self, tokens: int) -> None:
        """Counts a draft of so many tokens, which is verified."""
        self.drafts += 1
        self.drafted = (self.drafted or 0) + tokens

    def accept(self, position: int) -> None:
        """Counts the token at this place of a draft, which is kept."""
        self.accepted += 1
        if position < POSITIONS:
            self.by_position += [0] * (position + 1 - len(self.by_position))
            self.by_position[position] += 1

    def stats(self) -> dict[str, Any]:
        """Returns the fields of engine_types.EngineStats that are about draft tokens."""
        return {
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accepted_by_position": list(self.by_position),
        }
