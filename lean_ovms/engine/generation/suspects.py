"""After a step that raised: which request is at fault, found by trying those that may be one at a time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TypeVar

from .sequence import QueuedSequence

S = TypeVar("S", bound=QueuedSequence)
MAX_RETRIES = 3
"""Failed steps that one sequence may live through; one that is present every time is probably at fault."""


class Suspects(set[S]):
    """The sequences that may have made a step fail. One that has output, or is not wanted any more, is discarded."""

    def blame(self, interrupted: Seq[S]) -> S | None:
        """Returns the one that is to be ended after a failed step; None if each of the suspects is to be tried again.

        interrupted: the unfinished sequences of the step. Of several without output since they were last started each
        is tried with no other suspect in the step. A single one is tried again as well if others ran: one of those may
        have come to the point where it fails.
        """
        without_output = [s for s in interrupted if not s.has_output]
        suspects = without_output or interrupted
        at_fault: S | None = None
        if len(without_output) == 1 and (without_output[0].retries or len(interrupted) == 1):
            at_fault = without_output[0]
        elif tried := [s for s in suspects if s.retries >= MAX_RETRIES]:
            at_fault = tried[-1]
        else:
            self.update(suspects)
        for sequence in interrupted:
            sequence.retries += 1
        return at_fault

    def may_start(self, sequence: S, running: Seq[S]) -> bool:
        """Suspects are tried one at a time, among sequences with output. Others that were interrupted may resume; new
        ones wait.
        """
        if not self:
            return True
        if any(s in self for s in running):
            return False
        if sequence in self:
            return all(s.has_output for s in running)
        return sequence.retries > 0

    def order(self, interrupted: Seq[S]) -> list[S]:
        """Returns the interrupted sequences in the order in which they resume: suspects last."""
        return sorted(interrupted, key=lambda sequence: sequence in self)
