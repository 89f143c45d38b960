"""The queue and the running sequences of one pipeline, and what they may book of the KV cache.

It protects the pipeline (pipeline.Pipeline): a sequence is added only if it fits, and preempted before the cache
overflows. Steps and their outputs are step.Stepper's. It knows no sockets; records for the front end go to `out`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ...errors import BadRequest, RequestError
from ..protocol import Failed, Record
from . import preemption
from .fair_queue import FairQueue, group_of
from .grammar_load import GrammarLoad
from .kv_budget import KvBudget
from .pipeline import ASSISTANT_TOKENS, Pipeline
from .prefill import PrefillQueue
from .prefix_tracker import PrefixTracker
from .sequence import Request, Sequence
from .starting import Starter

PREFILL_TOKENS = 32
"""Tokens of each step that are kept for prompts: running sequences come first and could take all of them for ever."""


class Scheduler:
    """waiting, running: the sequences, in order. requests: by id, those not finished.

    suspects: sequences that may have made a step fail; they are tried again one at a time. compiling: a thread compiles
    a grammar, so no sequence with a grammar may start. cleanup_due: a step is due to free what was cancelled.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        max_running: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        priority_across_clients: bool = False,
    ) -> None:
        info = pipeline.info
        self.pipeline = pipeline
        self.kv = KvBudget(info.kv_blocks, info.block_size)
        self.out: list[Record] = []
        self.requests: dict[int, Request] = {}
        self.running: list[Sequence] = []
        self.suspects: set[Sequence] = set()
        self.steps = self.preemptions = 0
        self.compiling = False
        self.cleanup_due = False
        self.clock = clock
        self.grammar_load = GrammarLoad(clock)
        each = 1 + (ASSISTANT_TOKENS if info.speculative else 0)
        slots = min(max_running, _max_decoding(pipeline.step_tokens, each))
        self.waiting = FairQueue(slots, across=priority_across_clients)
        self._starter = Starter(self, slots, across=priority_across_clients)
        self.prefill = PrefillQueue(
            pipeline.step_tokens, each, shares_steps=pipeline.shares_steps, progress="progress" in info.capabilities
        )
        self._cancels_prefill = pipeline.cancels_prefill
        self.prefixes = PrefixTracker(info.block_size, info.kv_blocks) if info.prefix_caching else None
        self._reports_cached = info.reports_cached_tokens and "cached_tokens" not in info.capabilities
        self.prompts_alone = "alternatives" not in info.capabilities
        self._admission_times: deque[float] = deque(maxlen=32)

    @property
    def idle(self) -> bool:
        """There is nothing to step for."""
        return not (self.running or self.waiting or self.cleanup_due)

    # --- requests

    def add(self, request: Request) -> None:
        """Queue a request that fits the pipeline."""
        self.requests[request.id] = request
        self.waiting.add(request)

    def seconds_per_admission(self) -> float:
        """Mean time between the latest admissions; the present moment counts as one."""
        times = self._admission_times
        return (self.clock() - times[0]) / len(times) if times else 0.0

    def cancel(self, request_id: int, index: int | None) -> None:
        """Stop a request or one choice of it; an unknown id is one that has finished."""
        request = self.requests.get(request_id)
        if request is None:
            return
        cancelled = set(request.unfinished) if index is None else request.unfinished & {index}
        request.unfinished -= cancelled
        if not request.unfinished:
            del self.requests[request_id]
            self.waiting.dequeued(request)
            self.waiting.remove(request)
        for sequence in request.sequences:
            if not request.unfinished or (sequence.index in cancelled and not sequence.beams):
                self._cancel_sequence(sequence)
        request.drop_images()

    def fail(self, request: Request, error: RequestError) -> None:
        """End a request with an error, all its sequences."""
        if self.requests.get(request.id) is request:
            self.out.append(Failed(request.id, error.to_wire()))
            self.cancel(request.id, None)

    def fail_all(self, error: RequestError) -> None:
        """End every request, running or waiting."""
        self.out += [Failed(request_id, error.to_wire()) for request_id in self.requests]
        self.requests.clear()
        self.waiting.clear()
        self.running.clear()

    def _cancel_sequence(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue or out of the pipeline, whatever its state.

        One whose prompt is half computed stays until its first output. GenAI takes the block in which a chunk of a
        prompt ends for a whole one when the request is cancelled there, and every later prompt that begins alike gets
        its wrong content from the prefix cache (2026.4.1; log probabilities off by 0.05 and more, other answers).
        """
        if self._half_computed(sequence):
            sequence.cancel_pending = True
        else:
            self._abort(sequence)

    def _half_computed(self, sequence: Sequence) -> bool:
        """Some of its prompt may be in the prefix cache, and not all.

        Prompts are computed in the order in which they were added, each with the tokens that the one before leaves of a
        step: behind one that is not finished, none is started. A pipeline for which this does not matter says so
        (`cancels_prefill`): the paged engine's cache has whole blocks alone.
        """
        prefilling = sequence.handle is not None and self.steps > sequence.last_output_step
        if self.prefixes is None or self._cancels_prefill or not prefilling or sequence.has_output:
            return False
        return sequence is next(s for s in self.running if not s.has_output)

    def _abort(self, sequence: Sequence) -> None:
        if sequence.handle is not None:
            sequence.handle.cancel()
            self.cleanup_due = True
            self.remove(sequence)
        else:
            self.waiting.remove(sequence.request, sequence.index)
        self.suspects.discard(sequence)

    # --- admission

    def admit(self) -> None:
        """Start waiting sequences as far as slots, KV blocks and the next step allow."""
        self._starter.admit()

    def preempt(self, victim: Sequence) -> None:
        """Give the place of a running sequence to another client; it waits for its next turn."""
        self._abort(victim)
        victim.reset()
        self.waiting.put_back(victim, first=False)
        self.preemptions += 1

    def blocks_needed(self, sequence: Sequence) -> int:
        return sequence.reserved_blocks or self.kv.blocks(sequence.length + sequence.headroom)

    def start(self, sequence: Sequence) -> None:
        try:
            sequence.handle = self.pipeline.add(sequence.take_request())
        except BadRequest as error:
            self.fail(sequence.request, error)
            return
        self.waiting.started(sequence)
        now = self.clock()
        self._admission_times.append(now)
        sequence.added_at = sequence.added_at or now
        self.grammar_load.started(sequence)
        sequence.last_output_step, sequence.has_output = self.steps, False
        blocks, cached = self.blocks_needed(sequence), 0
        if self.prefixes is not None:
            cached = self.prefixes.cached_tokens(sequence, self.kv.allocated)
            if not sequence.started and not sequence.index and self._reports_cached:
                sequence.cached = cached
            self.prefixes.add(sequence, self.kv.reused_after)
        self._book(sequence, blocks)
        client, computed = group_of(sequence).client, sequence.length - cached
        self.prefill.add(sequence, computed)
        client.prefilling += 1
        if not sequence.started:
            self.waiting.charge(client, computed)
            sequence.started, sequence.charged = True, sequence.length
        self.running.append(sequence)

    # --- between two steps

    def start_step(self) -> None:
        """Preempt sequences until the next step fits the cache, and count the step."""
        while self.kv.exceeded:
            victim = preemption.over_budget(self.running, self.waiting.clients.values(), self._half_computed)
            self._abort(victim)
            if not victim.cancel_pending:
                self.requeue(victim)
                self.preemptions += 1
        if self.prefill:
            self.prefill.step(len(self.running))
        self.steps += 1

    def prompt_computed(self, sequence: Sequence) -> None:
        """A sequence has its first output."""
        sequence.has_output, sequence.output_since = True, self.steps
        self._leave_prefill(sequence)
        self.suspects.discard(sequence)
        if self.prefixes is not None:
            self.prefixes.prompt_computed(sequence)

    def grow(self, sequence: Sequence) -> None:
        """Book the blocks for the next step of a sequence."""
        self._book(sequence, self.blocks_needed(sequence) - sequence.blocks)
        self._charge(sequence)

    def _book(self, sequence: Sequence, blocks: int) -> None:
        self.kv.allocate(blocks)
        sequence.blocks += blocks
        group_of(sequence).client.blocks += blocks
        sequence.capacity = sequence.blocks * self.kv.block_size

    def finish(self, sequence: Sequence) -> None:
        """A sequence has its last token: end its computation, whatever its state in the pipeline."""
        request = sequence.request
        request.unfinished.discard(sequence.index)
        if sequence.beams:
            request.unfinished.clear()
        if not request.unfinished:
            self.requests.pop(request.id, None)
        if sequence.handle is not None and self.pipeline.status(sequence.handle) == "running":
            sequence.handle.cancel()
            self.cleanup_due = True

    def remove(self, sequence: Sequence) -> None:
        """A running sequence has left the pipeline: free its blocks and its handle."""
        self.running.remove(sequence)
        self._release(sequence)

    def cancel_running(self) -> list[Sequence]:
        """Cancel all running sequences in the pipeline; they are neither running nor waiting then."""
        removed, self.running = self.running, []
        for sequence in removed:
            if sequence.handle is not None:
                sequence.handle.cancel()
            self._release(sequence)
        return removed

    def requeue(self, sequence: Sequence) -> None:
        """Put a sequence that was removed back at the head of the queue."""
        sequence.reset()
        self.waiting.put_back(sequence, first=True)

    def _leave_prefill(self, sequence: Sequence) -> None:
        self.prefill.remove(sequence)
        group_of(sequence).client.prefilling -= 1

    def _charge(self, sequence: Sequence) -> None:
        """Its client pays for the tokens generated since the last time."""
        if sequence.length > sequence.charged:
            self.waiting.charge(group_of(sequence).client, sequence.length - sequence.charged)
            sequence.charged = sequence.length

    def _release(self, sequence: Sequence) -> None:
        self._charge(sequence)
        if not sequence.has_output:
            self._leave_prefill(sequence)
        self.kv.free(sequence.blocks)
        group_of(sequence).client.blocks -= sequence.blocks
        self.waiting.stopped(sequence)
        sequence.blocks = 0
        sequence.handle = None
        if self.prefixes is not None:
            if sequence.has_output and self._reports_cached:
                self.prefixes.answer_computed(sequence)
            self.prefixes.remove(sequence)
        sequence.request.drop_images()


def _max_decoding(step_tokens: int, each: int) -> int:
    """Sequences that can get so many tokens each in every step and still leave some of the step to prompts."""
    spare = min(PREFILL_TOKENS, step_tokens // 4)
    return max(1, (step_tokens - spare) // each)
