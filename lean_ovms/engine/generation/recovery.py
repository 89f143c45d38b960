"""After an exception out of a step: everybody out, find the culprit, take the others up again.

GenAI's pipeline throws on every later step once one step has thrown, and cancelling the culprit does not help.
Cancelling everybody and stepping until idle does (measured: one step, 0.7 ms, no block lost); those who were harmed
are added again with what they have generated, and go on as if nothing had happened.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from ...errors import EngineFailure
from ..errors import EngineLost, last_line
from .sequence import Sequence

if TYPE_CHECKING:
    from .scheduler import Scheduler

log = logging.getLogger(__name__)

DRAIN_STEPS = 8
MOST_TRIALS = 3
"""Recoveries that one sequence may live through; whoever is present every time is the likely culprit."""


def recover(batch: Scheduler, error: Exception) -> None:
    """Make the pipeline usable again and let the innocent go on. Raises EngineLost with everybody told."""
    batch.recoveries += 1
    log.error("a step failed: %s", last_line(error))
    harmed = [s for s in _take_out(batch) if s.request.id in batch.requests and not s.cancel_pending]
    if not batch.pipeline.recoverable or not _drained(batch):
        batch.fail_all(EngineFailure("The engine failed and is being restarted; please try again."))
        raise EngineLost(last_line(error))
    _judge(batch, harmed)


def _take_out(batch: Scheduler) -> list[Sequence]:
    """Read what can be read, cancel everybody; returns those who are not finished by that, oldest first."""
    harmed = []
    for sequence in batch.running:
        if not _read_rest(batch, sequence):
            harmed.append(sequence)
        if sequence.handle is not None:
            sequence.handle.cancel()
        batch.release(sequence)
    batch.running.clear()
    batch.clearing = False
    batch.settle()
    return harmed


def _read_rest(batch: Scheduler, sequence: Sequence) -> bool:
    try:
        while sequence.handle is not None and sequence.handle.can_read():
            if batch.take(sequence):
                return True
    except Exception as error:  # a poisoned pipeline may refuse this as well: then the tokens are computed again
        log.warning("unread tokens are lost: %s", last_line(error))
    return False


def _drained(batch: Scheduler) -> bool:
    try:
        for _ in range(DRAIN_STEPS):
            if not batch.pipeline.busy():
                return True
            batch.pipeline.step()
    except Exception as error:  # the border to the pipeline; the caller gives it up
        log.error("the pipeline does not recover: %s", last_line(error))
        return False
    return not batch.pipeline.busy()


def _judge(batch: Scheduler, harmed: list[Sequence]) -> None:
    """Blame the one that had no output since it was added; of several, each is tried again with no other suspect.

    Also a single one is tried again if others ran: one of those may have come to the point where it fails.
    """
    unproven = [s for s in harmed if not s.has_output]
    culprit = _culprit(harmed, unproven)
    suspects = unproven or harmed
    innocent = [s for s in harmed if s not in suspects]
    for sequence in reversed([*innocent, *suspects]):
        if culprit is None or sequence.request is not culprit.request:
            sequence.retries += 1
            sequence.leave()
            batch.waiting.appendleft(sequence)
    if culprit is not None:
        batch.fail(culprit.request, EngineFailure("The engine failed while it computed this request."))
    else:
        batch.suspects.update(suspects)


def _culprit(harmed: Seq[Sequence], unproven: Seq[Sequence]) -> Sequence | None:
    if len(unproven) == 1 and (unproven[0].retries or len(harmed) == 1):
        return unproven[0]
    candidates = unproven or harmed
    tried = [s for s in candidates if s.retries >= MOST_TRIALS]
    return tried[-1] if tried else None
