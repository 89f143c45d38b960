"""The queue and the running sequences of one pipeline, and what they may book of the KV cache.

It protects the pipeline (pipeline.Pipeline): a sequence is added only if it fits, and preempted before the cache
overflows. Steps and their outputs are step.Stepper's. It knows no sockets; records for the front end go to `out`.
"""

from __future__ import annotations

from ....errors import BadRequest, RequestError
from ...generation import preemption
from ...generation.admission_policy import AdmissionPolicy
from ...generation.fair_queue import FairQueue
from ...generation.grammar_load import GrammarLoad
from ...generation.pipeline import ASSISTANT_TOKENS
from ...generation.sequence import ClientQueue, GenerationRequest
from ...generation.suspects import Suspects
from ...protocol import Failed, Record
from .kv_budget import KvBudget
from .pipeline import Pipeline
from .prefill import PrefillQueue
from .prefix_tracker import PrefixTracker
from .sequence import GuardedSequence

BEAM_SPARE_BLOCKS = 2
"""Blocks per beam beyond its own tokens: the copy of a shared block that is written to, and one for rounding."""
PREFILL_TOKENS = 32
"""Tokens of each step that are kept for prompts: running sequences come first and could take all of them for ever."""


class GuardedScheduler:
    """waiting, running: the sequences, in order. requests: by id, those not finished.

    suspects: sequences that may have made a step fail. compiling: a thread compiles a grammar, so no sequence with a
    grammar may start. cleanup_due: a step is due to free what was cancelled.
    """

    def __init__(self, pipeline: Pipeline, max_running: int, *, across: bool = False) -> None:
        """max_running: sequences in the pipeline at once. across: priorities order the requests of all clients."""
        info = pipeline.info
        self.pipeline = pipeline
        self.kv = KvBudget(info.kv_blocks, info.block_size)
        self.out: list[Record] = []
        self.requests: dict[int, GenerationRequest] = {}
        self.running: list[GuardedSequence] = []
        self.suspects: Suspects[GuardedSequence] = Suspects()
        self.steps = self.preemptions = 0
        self.compiling = False
        self.cleanup_due = False
        each = 1 + (ASSISTANT_TOKENS if info.speculative else 0)
        slots = min(max_running, _max_decoding(pipeline.step_tokens, each))
        self.waiting: FairQueue[GuardedSequence] = FairQueue(slots, across=across)
        self.grammar_load = GrammarLoad(lambda: self.waiting.clock())
        self._policy = AdmissionPolicy(self.waiting, self)
        self.prefill = PrefillQueue(pipeline.step_tokens, each)
        self.prefixes = PrefixTracker(info.block_size, info.kv_blocks) if info.prefix_caching else None
        self._reports_cached = info.reports_cached_tokens
        self._images_added = False  # since the last step

    @property
    def idle(self) -> bool:
        """There is nothing to step for."""
        return not (self.running or self.waiting or self.cleanup_due)

    @property
    def calm(self) -> bool:
        """No request with a grammar is about to have its first step."""
        return all(s.has_output or not s.constrained for s in self.running) and not any(
            s.constrained and not self.grammar_load.must_wait(s, self.running) for s in self.waiting
        )

    # --- requests

    def add(self, request: GenerationRequest) -> None:
        """Queue a request that fits the pipeline."""
        if not request.sequences:
            request.sequences = self.sequences(request)
        self.requests[request.id] = request
        self.waiting.add(request)

    def sequences(self, request: GenerationRequest) -> list[GuardedSequence]:
        """Those of a request, as far as their choices are still waited for; one for a beam search."""
        sampling, speculative = request.sampling, bool(self.pipeline.info.speculative)
        headroom = 1 + (sampling.num_assistant_tokens or (ASSISTANT_TOKENS if speculative else 0))
        reserved = 0
        if sampling.beams > 1:
            each = self.kv.blocks(request.max_tokens) + BEAM_SPARE_BLOCKS
            reserved = self.kv.blocks(len(request.prompt)) + sampling.beams * each
        return [
            GuardedSequence(
                request=request,
                index=index,
                headroom=headroom,
                reserved_blocks=reserved,
                echo=sampling.prompt_logprobs and index == 0,
            )
            for index in ([0] if sampling.beams > 1 else sorted(request.unfinished))
        ]

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
            sequence.drop_images()

    def fail(self, request: GenerationRequest, error: RequestError) -> None:
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

    def _cancel_sequence(self, sequence: GuardedSequence) -> None:
        """Take a sequence out of the queue or out of the pipeline, whatever its state.

        One whose prompt is half computed stays until its first output. GenAI takes the block in which a chunk of a
        prompt ends for a whole one when the request is cancelled there, and every later prompt that begins alike gets
        its wrong content from the prefix cache (2026.4.1; log probabilities off by 0.05 and more, other answers).
        """
        if self._half_computed(sequence):
            sequence.cancel_pending = True
        else:
            self._abort(sequence)

    def _half_computed(self, sequence: GuardedSequence) -> bool:
        """Some of its prompt may be in the prefix cache, and not all.

        Prompts are computed in the order in which they were added, each with the tokens that the one before leaves of a
        step: behind one that is not finished, none is started.
        """
        prefilling = sequence.handle is not None and self.steps > sequence.last_output_step
        if self.prefixes is None or not prefilling or sequence.has_output:
            return False
        return sequence is next(s for s in self.running if not s.has_output)

    def _abort(self, sequence: GuardedSequence) -> None:
        if sequence.handle is not None:
            sequence.handle.cancel()
            self.cleanup_due = True
            self.remove(sequence)
        else:
            self.waiting.remove(sequence.request, sequence.index)
        self.suspects.discard(sequence)

    # --- admission_policy.Runner

    def admit(self, *, compiling: bool = False) -> None:
        """Start waiting sequences as far as slots, KV blocks and the next step allow.

        Images are encoded when their request is added, and everything else waits: only one such request per step, so
        that running ones get a token in between.
        """
        self.compiling = compiling
        self._images_added = False
        if self.waiting:
            self._policy.admit()

    @property
    def full(self) -> bool:
        return len(self.running) >= self.waiting.slots

    @property
    def total_blocks(self) -> int:
        return self.kv.total

    def blocks_of(self, client: ClientQueue) -> int:
        return sum(s.blocks for s in self.running if s.client is client)

    def blocks_needed(self, sequence: GuardedSequence) -> int:
        """All of them for a request with an echo: GenAI returns other tokens' log probabilities as the prompt's if any
        sequence is before it in the batch; those after it do no harm.
        """
        return self.kv.total if sequence.echo else self._booked(sequence)

    def prompts_full(self, client: ClientQueue) -> bool:
        return bool(self.prefill) and self.prefill.full(len(self.running)) and self.prefill.of(client)

    def must_wait(self, sequence: GuardedSequence) -> bool:
        """For a grammar, for its trial as a suspect, for another's prompt, or for another's images."""
        if sequence.constrained and (self.compiling or self.grammar_load.must_wait(sequence, self.running)):
            return True
        if not self.suspects.may_start(sequence, self.running):
            return True
        if self.prefixes is not None and self.prefixes.must_wait(sequence):
            return True
        return self._images_added and _has_images(sequence)

    def reserve(self, sequence: GuardedSequence, leaving: GuardedSequence | None) -> bool:
        """A fourth of the others can still grow by a block, or the new sequence would be the next to be preempted."""
        needed, spare = self.blocks_needed(sequence), len(self.running) // 4
        return not self.running or self.kv.used + needed + spare <= self.kv.total

    def start(self, sequence: GuardedSequence) -> None:
        try:
            sequence.handle = self.pipeline.add(sequence.take_request())
        except BadRequest as error:
            self.fail(sequence.request, error)
            return
        self._images_added = self._images_added or _has_images(sequence)
        self.waiting.started(sequence)
        sequence.started_at = sequence.started_at or self.waiting.clock()
        self.grammar_load.started(sequence)
        sequence.last_output_step, sequence.has_output = self.steps, False
        blocks, cached = self._booked(sequence), 0
        if self.prefixes is not None:
            cached = self.prefixes.cached_tokens(sequence, self.kv.allocated)
            if not sequence.started and not sequence.index and self._reports_cached:
                sequence.cached = cached
            self.prefixes.add(sequence, self.kv.reused_after)
        self._book(sequence, blocks)
        computed = sequence.length - cached
        self.prefill.add(sequence, computed)
        if not sequence.started:
            self.waiting.charge(sequence.client, computed)
            sequence.started, sequence.charged = True, sequence.length
        self.running.append(sequence)

    def preempt(self, sequence: GuardedSequence) -> None:
        self._abort(sequence)
        sequence.reset()
        self.waiting.put_back(sequence, first=False)
        self.preemptions += 1

    # --- between two steps

    def start_step(self) -> None:
        """Preempt sequences until the next step fits the cache, and count the step."""
        while self.kv.exceeded:
            movable = [s for s in self.running if not s.reserved_blocks]
            clients = self.waiting.clients.values()
            victim = preemption.over_budget(movable, clients, self.blocks_of, self._rank)
            self._abort(victim)
            if not victim.cancel_pending:
                self.requeue(victim)
                self.preemptions += 1
        if self.prefill:
            self.prefill.step(len(self.running))
        self.steps += 1

    def _rank(self, sequence: GuardedSequence) -> tuple[bool, int, int]:
        return self._half_computed(sequence), -sequence.request.priority, sequence.restart_cost

    def prompt_computed(self, sequence: GuardedSequence) -> None:
        """A sequence has its first output."""
        sequence.has_output, sequence.output_since = True, self.steps
        self.prefill.remove(sequence)
        self.suspects.discard(sequence)
        if self.prefixes is not None:
            self.prefixes.prompt_computed(sequence)

    def grow(self, sequence: GuardedSequence) -> None:
        """Book the blocks for the next step of a sequence."""
        self._book(sequence, self._booked(sequence) - sequence.blocks)
        self._charge(sequence)

    def _booked(self, sequence: GuardedSequence) -> int:
        return sequence.reserved_blocks or self.kv.blocks(sequence.length + sequence.headroom)

    def _book(self, sequence: GuardedSequence, blocks: int) -> None:
        self.kv.allocate(blocks)
        sequence.blocks += blocks
        sequence.capacity = sequence.blocks * self.kv.block_size

    def finish(self, sequence: GuardedSequence) -> None:
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

    def remove(self, sequence: GuardedSequence) -> None:
        """A running sequence has left the pipeline: free its blocks and its handle."""
        self.running.remove(sequence)
        self._release(sequence)

    def cancel_running(self) -> list[GuardedSequence]:
        """Cancel all running sequences in the pipeline; they are neither running nor waiting then."""
        removed, self.running = self.running, []
        for sequence in removed:
            if sequence.handle is not None:
                sequence.handle.cancel()
            self._release(sequence)
        return removed

    def requeue(self, sequence: GuardedSequence) -> None:
        """Put a sequence that was removed back at the head of the queue."""
        sequence.reset()
        self.waiting.put_back(sequence, first=True)

    def _charge(self, sequence: GuardedSequence) -> None:
        """Its client pays for the tokens generated since the last time."""
        if sequence.length > sequence.charged:
            self.waiting.charge(sequence.client, sequence.length - sequence.charged)
            sequence.charged = sequence.length

    def _release(self, sequence: GuardedSequence) -> None:
        self._charge(sequence)
        if not sequence.has_output:
            self.prefill.remove(sequence)
        self.kv.free(sequence.blocks)
        self.waiting.stopped(sequence)
        sequence.blocks = 0
        sequence.handle = None
        if self.prefixes is not None:
            if sequence.has_output and self._reports_cached:
                self.prefixes.answer_computed(sequence)
            self.prefixes.remove(sequence)
        sequence.drop_images()


def _has_images(sequence: GuardedSequence) -> bool:
    prompt = sequence.request.image_prompt
    return prompt is not None and bool(prompt.images)


def _max_decoding(step_tokens: int, each: int) -> int:
    """Sequences that can get so many tokens each in every step and still leave some of the step to prompts."""
    spare = min(PREFILL_TOKENS, step_tokens // 4)
    return max(1, (step_tokens - spare) // each)
