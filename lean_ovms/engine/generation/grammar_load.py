"""How many grammars are matched in one step: a step computes the masks of all, and everybody waits for them.

Sequences whose masks cost about the same share MASKS_S a step, and wait for each other; cheaper ones do not wait for
costly ones. First steps, in which GenAI converts a grammar again for every request, are spread over time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from .sequence import QueuedSequence

MASKS_S = 0.1
"""CPU time of the masks of a step, of sequences whose masks cost about the same; one alone may take longer."""
ALIKE = 4
"""Costs that differ by less than this factor are about the same."""
FREE_S = 0.001
"""A mask this cheap, and a first step of five times that, is not counted."""
START_SHARE = 4
"""After a costly first step none follows for this many times its time, as long as others run."""


class GrammarLoad:
    """What the running grammars cost."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_start = 0.0

    def must_wait(self, sequence: QueuedSequence, running: Seq[QueuedSequence]) -> bool:
        """Returns whether a sequence with a grammar may not start now."""
        cost = sequence.request.cost
        if cost is None or not running:
            return False
        if cost.start_s > 5 * FREE_S and self._clock() < self._next_start:
            return True
        if cost.mask_s <= FREE_S:
            return False
        masks: list[float] = [s.request.cost.mask_s for s in running if s.request.cost is not None]
        alike = sum(mask_s for mask_s in masks if cost.mask_s / ALIKE < mask_s < cost.mask_s * ALIKE)
        return alike > 0 and alike + cost.mask_s > MASKS_S

    def started(self, sequence: QueuedSequence) -> None:
        cost = sequence.request.cost
        if cost is not None and cost.start_s > 5 * FREE_S:
            self._next_start = self._clock() + (1 + START_SHARE) * cost.start_s
