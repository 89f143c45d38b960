"""Which waiting sequences start before the next step, and who gives way to them. The scheduler does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import preemption
from .fair_queue import Client, Group, group_of
from .sequence import Sequence

if TYPE_CHECKING:
    from .scheduler import Scheduler

MAX_PASSES = 64
"""Sequences of other clients that start before one that lacks KV blocks."""
MAX_PASSED = 64
"""Sequences that are looked at before a step, of those that cannot start yet."""


class Starter:
    """slots: sequences that run at once. across: as in FairQueue."""

    def __init__(self, scheduler: Scheduler, slots: int, *, across: bool) -> None:
        self._scheduler = scheduler
        self._queue = scheduler.waiting
        self._slots = slots
        self._across = across

    def admit(self) -> None:
        """Start waiting sequences, in the order of the queue, as far as slots, KV blocks and the next step allow.

        A sequence that waits for another's prompt or for its trial as a suspect lets others pass; one that waits for
        blocks does not, or a long prompt would starve behind short ones, except for MAX_PASSES of other clients within
        their share. Images are encoded when their request is added, and everything else waits: only one such request
        per step, so that running ones get a token in between.
        """
        scheduler = self._scheduler
        passed: list[Sequence] = []
        images_added = False
        lacking: Client | None = None  # its next sequence lacks blocks
        while (group := self._queue.next_group()) is not None:
            client, full = group.client, len(scheduler.running) >= self._slots
            if full and self._leaving(group) is None:
                break
            if client.prefilling and scheduler.prefill.waits(group.waiting[0], len(scheduler.running)):
                if scheduler.prefill.shares_steps and len(passed) < MAX_PASSED:
                    passed.append(self._queue.pop(group))  # shorter ones may be behind it
                else:
                    self._queue.hold(client)
                continue
            sequence = self._queue.pop(group)
            prompt = sequence.request.image_prompt
            has_images = prompt is not None and bool(prompt.images)
            if self._must_wait(sequence) or (has_images and images_added):
                passed.append(sequence)
                continue
            if not self._makes_room(sequence, lacking):
                lacking = lacking or client
                passed.append(sequence)
                self._queue.hold(client)
                continue
            images_added = images_added or has_images
            scheduler.start(sequence)
            if lacking is not None:
                lacking.passes += 1
        self._queue.resume()
        self._queue.restore(passed)

    def _leaving(self, group: Group) -> Sequence | None:
        """Who gives its slot to the next sequence of a group."""
        scheduler = self._scheduler
        giver = self._queue.giver(group)
        if giver is None:
            return None
        least = group.priority if self._across else None
        return preemption.for_another(scheduler.running, giver, scheduler.steps, least_priority=least)

    def _makes_room(self, sequence: Sequence, lacking: Client | None) -> bool:
        """Whether a sequence may start, where needed after others of clients beyond their share were preempted.

        lacking: the client that has to be passed.
        """
        scheduler = self._scheduler
        client, share = group_of(sequence).client, self._queue.share(scheduler.kv.total)
        within = client.blocks + scheduler.blocks_needed(sequence) <= share
        if lacking is not None and (lacking.passes >= MAX_PASSES or not within):
            return False
        while within and len(self._queue.clients) > 1 and not sequence.echo and not self._fits(sequence):
            most = max(self._queue.clients.values(), key=_blocks)
            if most.blocks <= share:
                return False
            victim = preemption.for_another(scheduler.running, most, scheduler.steps)
            if victim is None:
                return False
            scheduler.preempt(victim)
        if not self._fits(sequence):
            return False
        if len(scheduler.running) >= self._slots:
            victim = self._leaving(group_of(sequence))
            if victim is None:
                return False
            scheduler.preempt(victim)
        return True

    def _fits(self, sequence: Sequence) -> bool:
        scheduler = self._scheduler
        if not scheduler.running:
            return True
        if sequence.echo and scheduler.prompts_alone:
            # GenAI returns other tokens' log probabilities as the prompt's if any sequence is before it in the batch;
            # those after it do no harm.
            return False
        # A fourth of the others can still grow by a block, or the new sequence would be the next to be preempted.
        spare = len(scheduler.running) // 4
        return scheduler.kv.used + scheduler.blocks_needed(sequence) + spare <= scheduler.kv.total

    def _must_wait(self, sequence: Sequence) -> bool:
        scheduler = self._scheduler
        grammars = scheduler.grammar_load
        if sequence.constrained and (scheduler.compiling or grammars.must_wait(sequence, scheduler.running)):
            return True
        if scheduler.suspects and not self._may_run_with_suspects(sequence):
            return True
        return scheduler.prefixes is not None and scheduler.prefixes.must_wait(sequence)

    def _may_run_with_suspects(self, sequence: Sequence) -> bool:
        """Suspects are tried one at a time, beside sequences with output. Bystanders may resume; new ones wait."""
        scheduler = self._scheduler
        if any(s in scheduler.suspects for s in scheduler.running):
            return False
        if sequence in scheduler.suspects:
            return all(s.has_output for s in scheduler.running)
        return sequence.retries > 0


def _blocks(client: Client) -> int:
    return client.blocks
