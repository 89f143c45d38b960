"""The queue and the running sequences of one of openvino_genai's pipelines, and what they may take of its KV cache.

GenAI handles an exhausted cache by ending every running request without output, innocent ones included. So that point
must never be reached: blocks are booked for each sequence as it will be after the next step, shared prefixes once for
each sequence (an upper bound of what the pipeline really uses), and sequences are preempted before there are too many.
The steps themselves are `backend`'s.
"""

from __future__ import annotations

from ....errors import BadRequest, RequestError
from ...generation import preemption
from ...generation.admission_policy import AdmissionPolicy
from ...generation.fair_queue import FairQueue
from ...generation.grammar_load import GrammarLoad
from ...generation.pipeline import ASSISTANT_TOKENS
from ...generation.request_validator import BEAM_SPARE_BLOCKS
from ...generation.sequence import ClientQueue, GenerationRequest
from ...generation.suspects import Suspects
from ...protocol import Failed, Record
from .pipeline import Pipeline
from .prefix_tracker import PrefixTracker
from .sequence import GuardedSequence

PREFILL_TOKENS = 32
"""Tokens of each step that are kept for prompts: running sequences come first and could take all of them for ever."""


class GuardedScheduler:
    """Adds a sequence to the pipeline when it fits, and preempts sequences before the cache overflows.

    waiting, running: the sequences, in order. requests: by id, those not finished. out: records for the front end.
    used_blocks: booked of total_blocks. suspects: sequences that may have made a step fail. compiling: a thread
    compiles a grammar, so no sequence with a grammar may start. cleanup_due: a step must free what was cancelled.
    """

    def __init__(self, pipeline: Pipeline, max_running: int, *, across: bool = False) -> None:
        """max_running: sequences in the pipeline at once. across: priorities order the requests of all clients."""
        info = pipeline.info
        self.pipeline = pipeline
        self.out: list[Record] = []
        self.requests: dict[int, GenerationRequest] = {}
        self.running: list[GuardedSequence] = []
        self.suspects: Suspects[GuardedSequence] = Suspects()
        self.steps = self.preemptions = 0
        self.compiling = self.cleanup_due = False
        self.total_blocks, self.used_blocks = info.kv_blocks, 0
        self._block_size = info.block_size
        self._allocated = 0  # blocks since the start: at least as many as the pipeline has really allocated
        self._each = 1 + (ASSISTANT_TOKENS if info.speculative else 0)  # tokens of a step for a decoding sequence
        most = max(1, (pipeline.step_tokens - min(PREFILL_TOKENS, pipeline.step_tokens // 4)) // self._each)
        self.waiting: FairQueue[GuardedSequence] = FairQueue(min(max_running, most), across=across)
        self._grammar_load = GrammarLoad(lambda: self.waiting.clock())
        self._policy = AdmissionPolicy(self.waiting, self)
        self._prefixes = PrefixTracker(info.block_size, info.kv_blocks) if info.prefix_caching else None
        self._reports_cached = info.reports_cached_tokens
        self._images_added = False  # since the last step

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self.cleanup_due)

    @property
    def calm(self) -> bool:
        return all(s.has_output or not s.constrained for s in self.running) and not any(
            s.constrained and not self._grammar_load.must_wait(s, self.running) for s in self.waiting
        )

    # --- requests

    def add(self, request: GenerationRequest) -> None:
        request.sequences = self.sequences(request)
        self.requests[request.id] = request
        self.waiting.add(request)

    def sequences(self, request: GenerationRequest) -> list[GuardedSequence]:
        """Returns one sequence for each choice that is still waited for; a beam search is one sequence."""
        sampling = request.sampling
        headroom = sampling.num_assistant_tokens + 1 if sampling.num_assistant_tokens else self._each
        reserved, indices = 0, sorted(request.unfinished)
        if sampling.beams > 1:
            each = self._blocks(request.max_tokens) + BEAM_SPARE_BLOCKS
            reserved, indices = self._blocks(len(request.prompt)) + sampling.beams * each, [0]
        return [
            GuardedSequence(
                request=request,
                index=index,
                headroom=headroom,
                reserved_blocks=reserved,
                echo=sampling.prompt_logprobs and index == 0,
            )
            for index in indices
        ]

    def cancel(self, request_id: int, index: int | None) -> None:
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
        """Ends a request with an error, all its sequences."""
        if self.requests.get(request.id) is request:
            self.out.append(Failed(request.id, error.to_wire()))
            self.cancel(request.id, None)

    def _cancel_sequence(self, sequence: GuardedSequence) -> None:
        """Takes a sequence out of the queue or out of the pipeline, whatever its state.

        One whose prompt is half computed stays until its first output. GenAI takes the block in which a chunk of a
        prompt ends for a whole one when the request is cancelled there, and every later prompt that begins alike gets
        its wrong content from the prefix cache (2026.4.1; log probabilities off by 0.05 and more, other answers).
        """
        if self._half_computed(sequence):
            sequence.cancel_pending = True
        else:
            self._abort(sequence)

    def _half_computed(self, sequence: GuardedSequence) -> bool:
        """Returns whether some of a prompt may be in the prefix cache, and not all.

        Prompts are computed in the order in which they were added, each with the tokens that the one before leaves of a
        step: behind one that is not finished, none is started.
        """
        prefilling = sequence.handle is not None and self.steps > sequence.last_output_step
        if self._prefixes is None or not prefilling or sequence.has_output:
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
        """Starts waiting sequences as far as slots, KV blocks and the next step allow.

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

    def blocks_of(self, client: ClientQueue) -> int:
        return sum(s.blocks for s in self.running if s.client is client)

    def blocks_needed(self, sequence: GuardedSequence) -> int:
        """Returns all blocks for a request with an echo.

        GenAI returns other tokens' log probabilities as the prompt's if any sequence is before it in the batch; those
        after it do no harm.
        """
        return self.total_blocks if sequence.echo else self._booked(sequence)

    def prompts_full(self, client: ClientQueue) -> bool:
        """Returns whether there are more prompts than a step takes: another one gains nothing then.

        The pipeline computes prompts in the order in which they were added: everybody's next one would wait behind it.
        """
        mine = any(s.client is client for s in self._prefilling())
        return mine and sum(self._prompts_left()) >= self._budget()

    def must_wait(self, sequence: GuardedSequence) -> bool:
        """Returns whether a sequence waits for a grammar, its trial as a suspect, or another's prompt or images."""
        if sequence.constrained and (self.compiling or self._grammar_load.must_wait(sequence, self.running)):
            return True
        if not self.suspects.may_start(sequence, self.running):
            return True
        if self._prefixes is not None and self._prefixes.must_wait(sequence):
            return True
        return self._images_added and sequence.has_images

    def reserve(self, sequence: GuardedSequence, leaving: GuardedSequence | None) -> bool:
        """Leaves a block for a fourth of the others, or the new sequence would be the next to be preempted."""
        needed, spare = self.blocks_needed(sequence), len(self.running) // 4
        return not self.running or self.used_blocks + needed + spare <= self.total_blocks

    def start(self, sequence: GuardedSequence) -> None:
        try:
            sequence.handle = self.pipeline.add(sequence.take_request())
        except BadRequest as error:
            self.fail(sequence.request, error)
            return
        self._images_added = self._images_added or sequence.has_images
        self.waiting.started(sequence)
        self._grammar_load.started(sequence)
        sequence.last_output_step, sequence.has_output = self.steps, False
        cached = 0
        if self._prefixes is not None:
            cached = self._prefixes.cached_tokens(sequence, self._allocated)
            # The pipeline overwrites the free block that was allocated longest ago. Before it comes to one of this
            # sequence's, all others are in use as they are now, or were allocated later.
            self._prefixes.add(sequence, self._allocated + self.total_blocks - self.used_blocks - 1)
        self._book(sequence)
        sequence.prompt_left = sequence.length - cached
        if not sequence.started:
            sequence.started, sequence.started_at = True, self.waiting.clock()
            if self._reports_cached and not sequence.index:
                sequence.cached = cached
            self.waiting.charge(sequence.client, sequence.prompt_left)
            sequence.charged = sequence.length
        self.running.append(sequence)

    def preempt(self, sequence: GuardedSequence) -> None:
        self._abort(sequence)
        self.requeue(sequence, first=False)
        self.preemptions += 1

    def _prefilling(self) -> list[GuardedSequence]:
        return [s for s in self.running if not s.has_output]

    def _prompts_left(self) -> list[int]:
        """Returns about how many tokens of each prompt are not computed yet."""
        return [s.prompt_left for s in self._prefilling()]

    def _budget(self) -> int:
        """Returns how many tokens of prompts the next step can compute."""
        return self.pipeline.step_tokens - self._each * sum(s.has_output for s in self.running)

    # --- between two steps

    def start_step(self) -> None:
        """Preempts sequences until the next step fits the cache, and counts the step."""
        while self.used_blocks > self.total_blocks:
            movable = [s for s in self.running if not s.reserved_blocks]
            clients = self.waiting.clients.values()
            victim = preemption.over_budget(
                movable,
                clients,
                self.blocks_of,
                lambda one: (self._half_computed(one), -one.request.priority, one.restart_cost),
            )
            self._abort(victim)
            if not victim.cancel_pending:
                self.requeue(victim)
                self.preemptions += 1
        budget = self._budget()
        for sequence in self._prefilling():
            computed = max(0, min(sequence.prompt_left, budget))
            sequence.prompt_left -= computed
            budget -= computed
        self.steps += 1

    def prompt_computed(self, sequence: GuardedSequence) -> None:
        sequence.has_output, sequence.output_since = True, self.steps
        self.suspects.discard(sequence)
        if self._prefixes is not None:
            self._prefixes.prompt_computed(sequence)

    def grow(self, sequence: GuardedSequence) -> None:
        """Books the blocks for the next step of a sequence."""
        if self._booked(sequence) > sequence.blocks:
            self._book(sequence)
            self._charge(sequence)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _booked(self, sequence: GuardedSequence) -> int:
        return sequence.reserved_blocks or self._blocks(sequence.length + sequence.headroom)

    def _book(self, sequence: GuardedSequence) -> None:
        more = self._booked(sequence) - sequence.blocks
        self.used_blocks += more
        self._allocated += more
        sequence.blocks += more

    def finish(self, sequence: GuardedSequence) -> None:
        """A sequence has its last token: ends its computation, whatever its state in the pipeline."""
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
        """Frees the blocks and the handle of a sequence that has left the pipeline."""
        self.running.remove(sequence)
        self._charge(sequence)
        self.used_blocks -= sequence.blocks
        self.waiting.stopped(sequence)
        sequence.blocks, sequence.handle = 0, None
        if self._prefixes is not None:
            if sequence.has_output and self._reports_cached:
                self._prefixes.answer_computed(sequence)
            self._prefixes.remove(sequence)
        sequence.drop_images()

    def requeue(self, sequence: GuardedSequence, *, first: bool = True) -> None:
        """Puts a sequence that was removed back in the queue. first: before all others of its client."""
        sequence.reset()
        self.waiting.put_back(sequence, first=first)

    def _charge(self, sequence: GuardedSequence) -> None:
        """Charges the client for the tokens generated since the last time."""
        if sequence.length > sequence.charged:
            self.waiting.charge(sequence.client, sequence.length - sequence.charged)
            sequence.charged = sequence.length
