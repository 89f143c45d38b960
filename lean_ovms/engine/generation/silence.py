"""Steps and sequences that say nothing: a long prompt, an end that nobody told, or a pipeline that is stuck.

GenAI ends whom it has no KV blocks for without any output; only the status of the handle tells (IGNORED).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...errors import EngineFailure
from ..protocol import Tokens
from . import recovery
from .sequence import Sequence

if TYPE_CHECKING:
    from .scheduler import Scheduler

log = logging.getLogger(__name__)

STUCK_S = 1.0
"""A pipeline that is busy and schedules nothing for so long is stuck."""
MOST_LOST = 2
"""How often a sequence that the pipeline gave up is added again."""


def after_step(batch: Scheduler) -> None:
    """Look into a step that brought no output. Raises EngineLost."""
    busy = batch.pipeline.busy()
    batch.clearing = busy and not batch.running
    if not busy:
        batch.stuck_since = None
        check(batch, list(batch.running))
    elif batch.pipeline.scheduled():
        batch.stuck_since = None
    elif batch.stuck_since is None:
        batch.stuck_since = batch.clock()
    elif batch.clock() - batch.stuck_since > STUCK_S:
        batch.stuck_since = None
        recovery.recover(batch, TimeoutError("the pipeline schedules nothing"))


def check(batch: Scheduler, silent: list[Sequence]) -> None:
    """Ask for the status of sequences that have said nothing for a while, and act on it."""
    for sequence in reversed(silent):
        if sequence.handle is None or sequence.handle.can_read():
            continue
        status = batch.pipeline.status(sequence.handle)
        if status == "running":
            continue
        batch.running.remove(sequence)
        batch.release(sequence)
        if sequence.cancel_pending:
            batch.over(sequence)
        elif status == "lost":
            _again(batch, sequence)
        else:
            batch.out.append(Tokens(sequence.request.id, sequence.index, [], None, "stop"))
            batch.over(sequence)


def _again(batch: Scheduler, sequence: Sequence) -> None:
    """The pipeline gave up on it, by its own rule that ends everybody who runs when blocks are short."""
    sequence.lost += 1
    log.warning("request %d was given up by the pipeline (%d)", sequence.request.id, sequence.lost)
    if sequence.lost > MOST_LOST:
        batch.fail(sequence.request, EngineFailure("The engine ran out of KV cache for this request."))
    else:
        sequence.leave()
        batch.waiting.appendleft(sequence)
