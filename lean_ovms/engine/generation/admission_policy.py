"""Which waiting sequences start before the next step, and who gives way to them; the same for every scheduler."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Generic, Protocol, TypeVar

from . import preemption
from .fair_queue import FairQueue
from .sequence import ClientQueue, QueuedSequence, SequenceGroup

S = TypeVar("S", bound=QueuedSequence)
MAX_PASSES = 64
"""Sequences of other clients that start before one that lacks KV blocks."""
MAX_PASSED = 64
"""Sequences that are looked at before a step, of those that cannot start yet."""


class Runner(Protocol[S]):
    """What the policy needs of a scheduler. steps: since the start. total_blocks: of the KV cache."""

    @property
    def running(self) -> Seq[S]:
        """Oldest first."""

    @property
    def full(self) -> bool:
        """Every slot is taken."""

    @property
    def steps(self) -> int: ...

    @property
    def total_blocks(self) -> int: ...

    def blocks_of(self, client: ClientQueue) -> int:
        """Returns the KV blocks of its running sequences."""

    def blocks_needed(self, sequence: S) -> int:
        """Returns the KV blocks with which a sequence would start."""

    def prompts_full(self, client: ClientQueue) -> bool:
        """Returns whether a client has prompts that are not computed yet, for which another one would only wait."""

    def must_wait(self, sequence: S) -> bool:
        """Returns whether a sequence cannot start now while those behind it may."""

    def reserve(self, sequence: S, leaving: S | None) -> bool:
        """Reserves room for a sequence that is started then; returns whether there is any. leaving: gives its slot."""

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
        """Returns who gives its slot to the next sequence of a group."""
        giver = self._queue.giver(group)
        if giver is None:
            return None
        least = group.priority if self._queue.across else None
        return preemption.for_another(self._scheduler.running, giver, self._scheduler.steps, least_priority=least)

    def _makes_room(self, sequence: S, lacking: ClientQueue | None, leaving: S | None) -> bool:
        """Returns whether a sequence may start, where needed after others of clients beyond their share were preempted.

        lacking: the client that has to be passed. leaving: as in Runner.reserve.
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
            victim = preemption.for_another(scheduler.running, most, scheduler.steps)
            if victim is None:
                return False
            scheduler.preempt(victim)
            if scheduler.reserve(sequence, leaving if scheduler.full else None):
                return True

    def _within_share(self, sequence: S) -> bool:
        scheduler = self._scheduler
        blocks = scheduler.blocks_of(sequence.client) + scheduler.blocks_needed(sequence)
        return blocks <= self._queue.share(scheduler.total_blocks)
