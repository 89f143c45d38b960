"""The queue and the running sequences of one pipeline, and what they may book of the KV cache.

It protects the pipeline (pipeline.Pipeline): a sequence is added only if it fits, and preempted before the cache
overflows. Steps and their outputs are step.Stepper's. It knows no sockets; records for the front end go to `out`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ...errors import BadRequest, RequestError
from ..protocol import Cached, Failed, Record
from .kv_budget import KvBudget
from .pipeline import ASSISTANT_TOKENS, Pipeline
from .prefix_tracker import PrefixTracker
from .sequence import Request, Sequence

PREFILL_TOKENS = 32
"""Tokens of each step that are kept for prompts: running sequences come first and could take all of them for ever."""


class Scheduler:
    """waiting, running: the sequences, in order. requests: by id, those not finished.

    suspects: sequences that may have made a step fail; they are tried again one at a time. compiling: a thread compiles
    a grammar, so no sequence with a grammar may start. cleanup_due: a step is due to free what was cancelled.
    """

    def __init__(self, pipeline: Pipeline, max_running: int, clock: Callable[[], float] = time.monotonic) -> None:
        info = pipeline.info
        self.pipeline = pipeline
        self.kv = KvBudget(info.kv_blocks, info.block_size)
        self.out: list[Record] = []
        self.requests: dict[int, Request] = {}
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.suspects: set[Sequence] = set()
        self.steps = self.preemptions = 0
        self.compiling = False
        self.cleanup_due = False
        self.clock = clock
        self._max_running = min(max_running, _max_decoding(pipeline))
        self._prefixes = PrefixTracker(info.block_size, info.kv_blocks) if info.prefix_caching else None
        self._reports_cached = info.reports_cached_tokens and "cached_tokens" not in info.capabilities
        self._prompts_alone = "alternatives" not in info.capabilities
        self._admission_times: deque[float] = deque(maxlen=32)

    @property
    def idle(self) -> bool:
        """There is nothing to step for."""
        return not (self.running or self.waiting or self.cleanup_due)

    # --- requests

    def add(self, request: Request) -> None:
        """Queue a request that fits the pipeline."""
        self.requests[request.id] = request
        self.waiting.extend(request.sequences)

    def queued_requests(self) -> int:
        """Requests of which no sequence has started."""
        started = {s.request.id for s in self.running}
        return len({s.request.id for s in self.waiting if not s.generated} - started)

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
        for sequence in request.sequences:
            if not request.unfinished or (sequence.index in cancelled and not sequence.beams):
                self._cancel_sequence(sequence)

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
        step: behind one that is not finished, none is started.
        """
        prefilling = sequence.handle is not None and self.steps > sequence.last_output_step
        if self._prefixes is None or not prefilling or sequence.has_output:
            return False
        return sequence is next(s for s in self.running if not s.has_output)

    def _abort(self, sequence: Sequence) -> None:
        if sequence.handle is not None:
            sequence.handle.cancel()
            self.cleanup_due = True
            self.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.suspects.discard(sequence)

    # --- admission

    def admit(self) -> None:
        """Start waiting sequences, in order, as far as the number of sequences and KV blocks allow.

        A sequence that waits for another's prompt or for its trial as a suspect lets others pass; one that waits for
        blocks does not, or a long prompt would starve behind short ones. Images are encoded when their request is
        added, and everything else waits: only one such request per step, so that running ones get a token in between.
        """
        passed: list[Sequence] = []
        images_added = False
        while self.waiting and len(self.running) < self._max_running and self._fits(self.waiting[0]):
            sequence = self.waiting.popleft()
            prompt = sequence.request.image_prompt
            has_images = prompt is not None and bool(prompt.images)
            if self._must_wait(sequence) or (has_images and images_added):
                passed.append(sequence)
                continue
            images_added = images_added or has_images
            self._start(sequence)
        self.waiting.extendleft(reversed(passed))

    def _fits(self, sequence: Sequence) -> bool:
        if not self.running:
            return True
        if sequence.echo and self._prompts_alone:
            # GenAI returns other tokens' log probabilities as the prompt's if any sequence is before it in the batch;
            # those after it do no harm. None passes meanwhile, or it would wait for ever.
            return False
        # A fourth of the others can still grow by a block, or the new sequence would be the next to be preempted.
        spare = len(self.running) // 4
        return self.kv.used + self._blocks_needed(sequence) + spare <= self.kv.total

    def _blocks_needed(self, sequence: Sequence) -> int:
        return sequence.reserved_blocks or self.kv.blocks(sequence.length + sequence.headroom)

    def _must_wait(self, sequence: Sequence) -> bool:
        if self.compiling and sequence.constrained:
            return True
        if self.suspects and not self._may_run_with_suspects(sequence):
            return True
        return self._prefixes is not None and self._prefixes.must_wait(sequence)

    def _may_run_with_suspects(self, sequence: Sequence) -> bool:
        """Suspects are tried one at a time, beside sequences with output. Bystanders may resume; new ones wait."""
        if any(s in self.suspects for s in self.running):
            return False
        if sequence in self.suspects:
            return all(s.has_output for s in self.running)
        return sequence.retries > 0

    def _start(self, sequence: Sequence) -> None:
        try:
            sequence.handle = self.pipeline.add(sequence.take_request())
        except BadRequest as error:
            self.fail(sequence.request, error)
            return
        first = not sequence.started and not sequence.index
        self._admission_times.append(self.clock())
        sequence.started, sequence.last_output_step, sequence.has_output = True, self.steps, False
        blocks = self._blocks_needed(sequence)
        if self._prefixes is not None:
            if first and self._reports_cached:
                cached = self._prefixes.cached_tokens(sequence, self.kv.allocated)
                self.out.append(Cached(sequence.request.id, cached))
            self._prefixes.add(sequence, self.kv.reused_after)
        self._book(sequence, blocks)
        self.running.append(sequence)

    # --- between two steps

    def start_step(self) -> None:
        """Preempt the newest sequences until the next step fits the cache, and count the step.

        Those that would have to restart from their prompt stay if others can go; then those with presence or frequency
        penalties: after a preemption their generated tokens are part of the prompt, which these penalties ignore.
        """
        while self.kv.exceeded:
            movable = [s for s in reversed(self.running) if not s.reserved_blocks]
            victim = min(movable, key=lambda s: (self._half_computed(s), s.restarts_from_prompt, s.has_penalties))
            self._abort(victim)
            if not victim.cancel_pending:
                self.requeue(victim)
                self.preemptions += 1
        self.steps += 1

    def prompt_computed(self, sequence: Sequence) -> None:
        """A sequence has its first output."""
        sequence.has_output = True
        self.suspects.discard(sequence)
        if self._prefixes is not None:
            self._prefixes.prompt_computed(sequence)

    def grow(self, sequence: Sequence) -> None:
        """Book the blocks for the next step of a sequence."""
        self._book(sequence, self._blocks_needed(sequence) - sequence.blocks)

    def _book(self, sequence: Sequence, blocks: int) -> None:
        self.kv.allocate(blocks)
        sequence.blocks += blocks
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
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.kv.free(sequence.blocks)
        sequence.blocks = 0
        sequence.handle = None
        if self._prefixes is not None:
            if sequence.has_output and self._reports_cached:
                self._prefixes.answer_computed(sequence)
            self._prefixes.remove(sequence)


def _max_decoding(pipeline: Pipeline) -> int:
    """Sequences that can get a token in every step and still leave some of the step to prompts."""
    each = 1 + (ASSISTANT_TOKENS if pipeline.info.speculative else 0)
    spare = min(PREFILL_TOKENS, pipeline.step_tokens // 4)
    return max(1, (pipeline.step_tokens - spare) // each)
