"""Decides which waiting sequences start before the next step, and which running ones are preempted for them.

AdmissionPolicy makes these decisions before each step. A sequence is preempted, and continues later, in two cases: the
KV cache would overflow in the next step (`over_budget`), or a client or request with less than its share waits while
another has more (`for_another`). In the second case only sequences that have run for a while are chosen, so that each
one makes progress before it is preempted again. FaultIsolation finds the request at fault after a step that raised an
error, and `must_wait_for_masks` limits the time that grammars take in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from ..generation.fair_queue import FairQueue
from ..generation.sequence import ClientQueue, SequenceGroup
from .sequence import Sequence

if TYPE_CHECKING:
    from .scheduler import Scheduler

MAX_PASSES = 64
"""The most sequences of other clients that may start before one that lacks KV blocks."""
MAX_PASSED = 64
"""The most waiting sequences that are examined before a step and cannot start yet."""


class AdmissionPolicy:
    """Starts the sequences of a queue on a scheduler."""

    def __init__(self, queue: FairQueue[Sequence], scheduler: Scheduler) -> None:
        self._queue = queue
        self._scheduler = scheduler

    def admit(self) -> None:
        """Starts waiting sequences in the order of the queue, as far as slots, KV blocks and the next step allow.

        A sequence that waits for something else, such as grammar masks, may be overtaken. One that waits for blocks may
        not, or a long prompt would starve behind short ones; but up to MAX_PASSES sequences of other clients within
        their share may.
        """
        queue, scheduler = self._queue, self._scheduler
        passed: list[Sequence] = []
        lacking: ClientQueue | None = None  # its next sequence lacks blocks
        while (group := queue.next_group()) is not None:
            client, leaving = group.client, None
            if scheduler.full and (leaving := self._leaving(group)) is None:
                break
            if len(passed) >= MAX_PASSED or scheduler.prompts_full(client):
                queue.pause(client)
                continue
            sequence = queue.pop(group)
            if scheduler.must_wait(sequence):
                passed.append(sequence)
                continue
            if not self._makes_room(sequence, lacking, leaving):
                lacking = lacking or client
                passed.append(sequence)
                queue.pause(client)
                continue
            if leaving is not None and scheduler.full:
                scheduler.preempt(leaving)
            scheduler.start(sequence)
            if lacking is not None:
                lacking.passes += 1
        queue.resume()
        queue.restore(passed)

    def _leaving(self, group: SequenceGroup) -> Sequence | None:
        """Returns the sequence that should give its slot to a group's next one; None if none can at the moment."""
        giver = self._queue.giver(group)
        if giver is None:
            return None
        least = group.priority if self._queue.priority_across_clients else None
        return for_another(self._scheduler.running, giver, self._scheduler.steps, least_priority=least)

    def _makes_room(self, sequence: Sequence, lacking: ClientQueue | None, leaving: Sequence | None) -> bool:
        """Returns whether a sequence may start now, after preempting others for it if necessary.

        Only for a client within its share of the blocks are others preempted, and only those of clients above theirs.

        Args:
            sequence: The sequence.
            lacking: A client earlier in the queue whose next sequence lacks blocks and would be overtaken; None if
                there is none.
            leaving: The running sequence whose slot this one takes; None if a slot is free.
        """
        scheduler, queue = self._scheduler, self._queue
        if lacking is not None and (lacking.passes >= MAX_PASSES or not self._within_share(sequence)):
            return False
        if scheduler.reserve(sequence, leaving):
            return True
        if len(queue.clients) == 1 or not self._within_share(sequence):
            return False
        share = queue.share(scheduler.total_blocks)
        while True:
            most = max(queue.clients.values(), key=scheduler.blocks_of)
            if scheduler.blocks_of(most) <= share:
                return False
            victim = for_another(scheduler.running, most, scheduler.steps)
            if victim is None:
                return False
            scheduler.preempt(victim)
            if scheduler.reserve(sequence, leaving if scheduler.full else None):
                return True

    def _within_share(self, sequence: Sequence) -> bool:
        scheduler = self._scheduler
        blocks = scheduler.blocks_of(sequence.client) + scheduler.blocks_needed(sequence)
        return blocks <= self._queue.share(scheduler.total_blocks)


MASKS_S = 0.1
"""The most CPU seconds per step for the masks of sequences with similar costs; a single sequence may exceed it."""
ALIKE = 4
"""Two mask costs are similar if they differ by less than this factor."""
FREE_S = 0.001
"""The CPU seconds up to which the cost of a mask is ignored."""


def must_wait_for_masks(sequence: Sequence, running: Seq[Sequence]) -> bool:
    """Returns whether a sequence with a grammar has to wait because masks would take too long in a step.

    All sequences of a step wait for the masks of each. So sequences with similar mask costs together get at most
    MASKS_S per step, and the others wait; those with cheaper masks do not wait for costly ones.
    """
    cost = sequence.request.cost
    if cost is None or cost.mask_s <= FREE_S:
        return False
    masks: list[float] = [s.request.cost.mask_s for s in running if s.request.cost is not None]
    alike = sum(mask_s for mask_s in masks if cost.mask_s / ALIKE < mask_s < cost.mask_s * ALIKE)
    return alike > 0 and alike + cost.mask_s > MASKS_S


MAX_RETRIES = 3
"""The number of failed steps that a sequence survives. One that takes part in more is probably at fault."""


class FaultIsolation(set[Sequence]):
    """The sequences that may have caused a failed step. They are run one at a time to find the one at fault.

    A sequence is removed once it has output, or was cancelled.
    """

    def pick(self, interrupted: Seq[Sequence]) -> Sequence | None:
        """Returns which interrupted sequence to end after a failed step; None if all suspects should be tried again.

        Suspects are the sequences without output since they were last started. If there are several, each is tried
        without the others. A single one is tried once more if other sequences ran in the step, since one of those may
        have reached the point where it fails.
        """
        without_output = [s for s in interrupted if not s.has_output]
        suspects = without_output or interrupted
        at_fault: Sequence | None = None
        if len(without_output) == 1 and (without_output[0].retries or len(interrupted) == 1):
            at_fault = without_output[0]
        elif tried := [s for s in suspects if s.retries >= MAX_RETRIES]:
            at_fault = tried[-1]
        else:
            self.update(suspects)
        for sequence in interrupted:
            sequence.retries += 1
        return at_fault

    def may_start(self, sequence: Sequence, running: Seq[Sequence]) -> bool:
        """Returns whether a sequence may start.

        A suspect may start if all running sequences have output. Other interrupted sequences may resume, and new ones
        wait.
        """
        if not self:
            return True
        if any(s in self for s in running):
            return False
        if sequence in self:
            return all(s.has_output for s in running)
        return sequence.retries > 0

    def order(self, interrupted: Seq[Sequence]) -> list[Sequence]:
        """Returns the interrupted sequences in the order in which they resume, suspects last."""
        return sorted(interrupted, key=lambda sequence: sequence in self)


MIN_RUN_STEPS = 16
"""The number of steps with output after which a sequence's slot may be given to another client. Computing it again is
cheap, since most of it is in the prefix cache."""


def over_budget(
    running: Seq[Sequence], clients: Iterable[ClientQueue], blocks_of: Callable[[ClientQueue], int]
) -> Sequence:
    """Returns the sequence to preempt when the KV cache overflows.

    It belongs to the client with the most blocks, and is the newest among those with the least urgent priority. The
    oldest running sequence is never chosen, so that at least one makes progress.

    Args:
        running: The sequences that may be preempted, oldest first.
        clients: The clients that have sequences.
        blocks_of: Returns the number of blocks that a client has.
    """
    movable = list(reversed(running))
    clients = list(clients)
    if len(clients) > 1:
        most = max(clients, key=blocks_of)
        movable = [s for s in movable if s.client is most and s is not running[0]] or movable
    return max(movable, key=lambda s: s.request.priority)


def for_another(
    running: Seq[Sequence], giver: ClientQueue | SequenceGroup, steps: int, *, least_priority: int | None = None
) -> Sequence | None:
    """Returns a sequence to preempt so that another client or request can run; None if none can be at the moment.

    Args:
        running: The running sequences, oldest first.
        giver: The client or the request that must give up a slot.
        steps: The number of steps that the engine has computed.
        least_priority: Only sequences with this priority value or a higher, less urgent one are chosen; None for any.
    """
    candidates = [
        s
        for s in reversed(running)
        if giver in (s.group, s.client)
        and (s.has_output and steps - s.output_since >= MIN_RUN_STEPS and not s.beams)
        and (least_priority is None or s.request.priority >= least_priority)
    ]
    if not candidates:
        return None
    return min(candidates, key=lambda s: (-s.request.priority, -s.group.running))
