"""Decides which waiting sequences start before the next step, and which give way to them.

AdmissionPolicy makes these decisions before each step. Two occasions make a sequence leave the engine and continue
later: the KV cache would overflow with the next step (`over_budget`), or a client, or a request, with less than its
share waits while another has more (`for_another`). The second takes only what has run for a while since it was last
started, so that everything that is resumed gets on. FaultIsolation finds the request at fault after a step that raised,
and `must_wait_for_masks` bounds what grammars cost in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Generic, Protocol, TypeVar

from .fair_queue import FairQueue
from .sequence import ClientQueue, QueuedSequence, SequenceGroup

S = TypeVar("S", bound=QueuedSequence)
MAX_PASSES = 64
"""Sequences of other clients that start before one that lacks KV blocks."""
MAX_PASSED = 64
"""Sequences that are looked at before a step, of those that cannot start yet."""


class Runner(Protocol[S]):
    """The part of a scheduler that the policy needs."""

    @property
    def running(self) -> Seq[S]:
        """The running sequences, the oldest first."""

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""

    @property
    def steps(self) -> int:
        """The number of steps since the start."""

    @property
    def total_blocks(self) -> int:
        """The number of blocks of the KV cache."""

    def blocks_of(self, client: ClientQueue) -> int:
        """Returns the KV blocks of its running sequences."""

    def blocks_needed(self, sequence: S) -> int:
        """Returns the KV blocks with which a sequence would start."""

    def prompts_full(self, client: ClientQueue) -> bool:
        """Returns whether a client has prompts that are not computed yet, for which another one would only wait."""

    def must_wait(self, sequence: S) -> bool:
        """Returns whether a sequence cannot start now while those behind it may."""

    def reserve(self, sequence: S, leaving: S | None) -> bool:
        """Reserves room for a sequence that is started then; returns whether there is any.

        Args:
            sequence: The sequence.
            leaving: The running sequence that gives its slot to it; None: a slot is free.
        """

    def start(self, sequence: S) -> None:
        """Runs a sequence for which room is reserved."""

    def preempt(self, sequence: S) -> None:
        """Puts a running sequence back into the queue, behind others of its client."""


class AdmissionPolicy(Generic[S]):
    """Starts the sequences of a queue on a scheduler."""

    def __init__(self, queue: FairQueue[S], scheduler: Runner[S]) -> None:
        self._queue = queue
        self._scheduler = scheduler

    def admit(self) -> None:
        """Starts waiting sequences, in the order of the queue, as far as slots, KV blocks and the next step allow.

        One that has to wait for something else lets others pass; one that waits for blocks does not, or a long prompt
        would starve behind short ones, except for MAX_PASSES of other clients within their share.
        """
        queue, scheduler = self._queue, self._scheduler
        passed: list[S] = []
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

    def _leaving(self, group: SequenceGroup) -> S | None:
        """Returns the sequence that gives its slot to the next one of a group; None: none can at the moment."""
        giver = self._queue.giver(group)
        if giver is None:
            return None
        least = group.priority if self._queue.priority_across_clients else None
        return for_another(self._scheduler.running, giver, self._scheduler.steps, least_priority=least)

    def _makes_room(self, sequence: S, lacking: ClientQueue | None, leaving: S | None) -> bool:
        """Returns whether a sequence may start now, for which others may be preempted.

        Only sequences of clients that have more than their share of the blocks are preempted, for one that is within
        its own.

        Args:
            sequence: The sequence.
            lacking: The client before it whose next sequence lacks blocks, and has to be passed; None: there is none.
            leaving: The sequence that gives its slot to this one; None: a slot is free.
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

    def _within_share(self, sequence: S) -> bool:
        scheduler = self._scheduler
        blocks = scheduler.blocks_of(sequence.client) + scheduler.blocks_needed(sequence)
        return blocks <= self._queue.share(scheduler.total_blocks)


MASKS_S = 0.1
"""CPU time of the masks of a step, of sequences whose masks cost about the same; one alone may take longer."""
ALIKE = 4
"""Costs that differ by less than this factor are about the same."""
FREE_S = 0.001
"""A mask this cheap is not counted."""


def must_wait_for_masks(sequence: QueuedSequence, running: Seq[QueuedSequence]) -> bool:
    """Returns whether a sequence with a grammar may not start now: a step computes the masks of all that run.

    Everybody waits for these. So sequences whose masks cost about the same share MASKS_S a step, and wait for each
    other; cheaper ones do not wait for costly ones.
    """
    cost = sequence.request.cost
    if cost is None or cost.mask_s <= FREE_S:
        return False
    masks: list[float] = [s.request.cost.mask_s for s in running if s.request.cost is not None]
    alike = sum(mask_s for mask_s in masks if cost.mask_s / ALIKE < mask_s < cost.mask_s * ALIKE)
    return alike > 0 and alike + cost.mask_s > MASKS_S


MAX_RETRIES = 3
"""Failed steps that one sequence may live through; one that is present every time is probably at fault."""


class FaultIsolation(set[S]):
    """The sequences that may have made a step fail, which are tried one at a time to find the one at fault.

    One that has output, or is not wanted any more, is discarded.
    """

    def pick(self, interrupted: Seq[S]) -> S | None:
        """Returns the sequence that is to be ended after a failed step; None if each of the suspects is to be tried
        again.

        Of several suspects, those without output since they were last started, each is tried with no other of them in
        the step. A single one is tried again as well if others ran: one of those may have come to the point where it
        fails.

        Args:
            interrupted: The unfinished sequences of the step.
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
        """Returns whether a sequence may start. Suspects are tried one at a time, among sequences with output. Others
        that were interrupted may resume; new ones wait.
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


MIN_RUN_STEPS = 16
"""Steps with output that a sequence has before its slot may be given to another client; computing it again costs less,
because most of it is in the prefix cache."""


def over_budget(running: Seq[S], clients: Iterable[ClientQueue], blocks_of: Callable[[ClientQueue], int]) -> S:
    """Returns the sequence to preempt when the KV cache is exceeded: the newest of the least urgent ones of the client
    with most blocks.

    The oldest sequence stays, whose ever it is, so that something always gets on.

    Args:
        running: The sequences that may be preempted, oldest first.
        clients: The clients that have sequences.
        blocks_of: Returns the blocks that a client has.
    """
    movable = list(reversed(running))
    clients = list(clients)
    if len(clients) > 1:
        most = max(clients, key=blocks_of)
        movable = [s for s in movable if s.client is most and s is not running[0]] or movable
    return max(movable, key=lambda s: s.request.priority)


def for_another(
    running: Seq[S], giver: ClientQueue | SequenceGroup, steps: int, *, least_priority: int | None = None
) -> S | None:
    """Returns the sequence of a client or a request that gives its place to another; None if none can at the moment.

    Args:
        running: The running sequences, oldest first.
        giver: The client or the request that gives a place.
        steps: The steps that the engine has computed so far.
        least_priority: Only sequences of this priority or a less urgent one are chosen; None: of any.
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
