"""After a step that raised: repair the pipeline, find the request at fault, and let the others go on.

GenAI's pipeline throws on every later step once one step has thrown, and cancelling the request at fault does not help.
Cancelling all and stepping until idle does (measured: one step, 0.7 ms, no block lost); those that were interrupted
are added again with their generated tokens, and continue as if nothing had happened.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

from ...errors import EngineFailure
from ..errors import EngineLost, last_line
from .pipeline import Pipeline
from .scheduler import Scheduler
from .sequence import Sequence

log = logging.getLogger(__name__)

DRAIN_STEPS = 8
MAX_RETRIES = 3
"""Recoveries that one sequence may live through; one that is present every time is probably at fault."""


def recover(scheduler: Scheduler, interrupted: Seq[Sequence], error: Exception) -> None:
    """Make the pipeline usable and queue the sequences again that are not at fault.

    interrupted: the unfinished sequences of the failed step, oldest first, already removed from the pipeline.
    Raises EngineLost, with every request failed.
    """
    if not scheduler.pipeline.recoverable or not _drain(scheduler.pipeline):
        scheduler.fail_all(EngineFailure("The engine failed and is being restarted; please try again."))
        raise EngineLost(last_line(error))
    _retry(scheduler, interrupted)


def _drain(pipeline: Pipeline) -> bool:
    """Step until the pipeline is idle; whether that was possible."""
    try:
        for _ in range(DRAIN_STEPS):
            if not pipeline.busy():
                return True
            pipeline.step()
    except Exception as error:  # of the pipeline, which the caller gives up then
        log.error("the pipeline does not recover: %s", last_line(error))
        return False
    return not pipeline.busy()


def _retry(scheduler: Scheduler, interrupted: Seq[Sequence]) -> None:
    """Blame the one without output since it was added; of several, each is tried again with no other suspect.

    A single one is tried again as well if others ran: one of those may have come to the point where it fails.
    """
    without_output = [s for s in interrupted if not s.has_output]
    at_fault = _at_fault(interrupted, without_output)
    suspects = without_output or interrupted
    bystanders = [s for s in interrupted if s not in suspects]
    for sequence in reversed([*bystanders, *suspects]):
        if at_fault is None or sequence.request is not at_fault.request:
            sequence.retries += 1
            scheduler.requeue(sequence)
    if at_fault is not None:
        scheduler.fail(at_fault.request, EngineFailure("The engine failed while it computed this request."))
    else:
        scheduler.suspects.update(suspects)


def _at_fault(interrupted: Seq[Sequence], without_output: Seq[Sequence]) -> Sequence | None:
    """The sequence that made the step fail, if that is certain or probable enough."""
    if len(without_output) == 1 and (without_output[0].retries or len(interrupted) == 1):
        return without_output[0]
    tried = [s for s in without_output or interrupted if s.retries >= MAX_RETRIES]
    return tried[-1] if tried else None
