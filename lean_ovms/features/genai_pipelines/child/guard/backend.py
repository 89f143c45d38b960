"""A pipeline of openvino_genai as a backend of the engine, to which requests are added in their order.

The pipeline preempts sequences by itself if its KV cache is too small. Three things must not happen in it:

1. It preempts a beam search, which ends without output then; only the status of the handle shows it (IGNORED). So the
   whole life of each running sequence has to fit the cache while one of these runs. Or it preempts a sequence with
   draft tokens: the step throws. So blocks are counted with these, and the newest fails before there are too many.
2. A prompt that is half computed is cancelled, with a prefix cache. GenAI takes the block in which a chunk of a prompt
   ends for a whole one then, and every later prompt that begins alike gets its wrong content (2026.4.1; log
   probabilities off by 0.05 and more, other answers). Such a sequence stays until its first output.
3. A step throws. It throws on every later one, and cancelling the request at fault does not help. Cancelling all and
   stepping until idle does (measured: one step, 0.7 ms, no block lost): the requests that ran have failed, those that
   wait go on.

A step or a sequence has no output while a long prompt is computed, when the pipeline ended a sequence without any, or
when it is stuck.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .....config import EngineConfig
from .....engine.generation.backend import (
    ASSISTANT_TOKENS,
    ImagePlaceholders,
    LongTextEncoder,
    SpecDecodeStats,
    WaitingRequests,
)
from .....engine.generation.fair_queue import FairQueue, GenerationRequest
from .....engine.generation.request_validator import BEAM_SPARE_BLOCKS
from .....engine.loading.pipeline_choice import drafts_of
from .....engine.protocol import Counted, Failed, Prefilled, Record, ResetPrefixCache, Tokens
from .....errors import RESTARTING, BadRequest, EngineFailure, EngineLost, NotSupported, RequestError, last_line
from .....types.engine import EngineStats
from .pipeline import Pipeline
from .sequence import GuardedSequence, emit

log = logging.getLogger(__name__)

CHECK_EVERY = 16
"""Steps without output after which a sequence's status is looked up (1 us); a long prompt takes many steps."""
STUCK_S = 1.0
"""Seconds after which a pipeline that is busy and schedules nothing is stuck."""
SPARE_BLOCKS = 8
"""KV blocks that a sequence with draft tokens has to find free beyond those that it has, unless it ends before."""
OUT_OF_CACHE = "The engine ran out of KV cache for this request."
DRAIN_STEPS = 8
"""The number of steps after which a pipeline is idle if all its requests are cancelled."""


class GuardedPipeline:
    """A backend that guards a pipeline against situations in which it fails."""

    wake: Callable[[], None] | None = None
    started = computing = False  # a step holds the interpreter lock

    def __init__(self, pipeline: Pipeline, max_running: int, *, priority_across_clients: bool = False) -> None:
        """Makes the guard of a loaded pipeline.

        Args:
            pipeline: The pipeline, which has no other user.
            max_running: The most sequences in the pipeline at once.
            priority_across_clients: Whether a request's priority also counts against requests of other clients.
        """
        self.pipeline = pipeline
        self.info, self.vocabulary, self.grammars = pipeline.info, pipeline.vocabulary, pipeline.grammars
        self.image_placeholders: ImagePlaceholders | None = pipeline.image_token_counter
        self.image_queue: WaitingRequests | None = None
        self.long_text_encoder: LongTextEncoder | None = pipeline.long_text_encoder
        self.out: list[Record] = []
        self.requests: dict[int, GenerationRequest] = {}
        self.running: list[GuardedSequence] = []
        """The sequences in the pipeline, the oldest first."""
        self.total_blocks = self.info.kv_blocks
        self._steps = self._recoveries = 0
        self._cleanup_due = False
        self.waiting: FairQueue[GuardedSequence] = FairQueue(
            min(max_running, pipeline.step_tokens), priority_across_clients=priority_across_clients
        )
        self._drafts = SpecDecodeStats()
        self._stuck_since: float | None = None

    @classmethod
    def from_config(cls, pipeline: Pipeline, config: EngineConfig) -> GuardedPipeline:
        """Makes the guard of a pipeline with the limits of the options.

        If the draft model takes fewer sequences than the main one, its limit holds, since further sequences would wait
        inside GenAI for ever.
        """
        limits = (config.max_num_seqs, drafts_of(config).max_sequences, pipeline.info.max_sequences)
        return cls(
            pipeline, min(limit for limit in limits if limit), priority_across_clients=config.priority_across_clients
        )

    # --- requests

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self._cleanup_due)

    @property
    def may_compile(self) -> bool:
        return all(s.has_output or not s.constrained for s in self.running) and not any(
            s.constrained for s in self.waiting
        )

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.pipeline.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return self.pipeline.decode(tokens, skip_special_tokens)

    def check(self, request: GenerationRequest) -> None:
        """Raises BadRequest for combinations that GenAI cannot handle.

        Beam search ignores a grammar and does not work with drafts, min_tokens is filled with token 0 at the end of a
        grammar, and a prompt that is found in the prefix cache has no logits.
        """
        sampling, info = request.sampling, self.info
        if sampling.beams > 1 and info.speculative:
            raise BadRequest(
                "beam search cannot be combined with speculative or prompt lookup decoding", param="best_of"
            )
        if sampling.prompt_logprobs and info.prefix_caching:
            raise BadRequest(
                "log probabilities of the prompt need a server with --enable_prefix_caching false", param="echo"
            )
        if sampling.prompt_logprobs and sampling.beams > 1:
            raise BadRequest("log probabilities of the prompt cannot be combined with beam search", param="best_of")
        if request.constraint and sampling.beams > 1:
            raise BadRequest("structured output cannot be combined with beam search (best_of > 1)", param="best_of")
        if request.constraint and sampling.min_tokens:
            raise BadRequest("structured output cannot be combined with min_tokens", param="min_tokens")
        self.pipeline.check(self._sequences(request)[0].pipeline_request())

    def add(self, request: GenerationRequest) -> None:
        request.sequences = self._sequences(request)
        self.requests[request.id] = request
        self.waiting.add(request)

    def _sequences(self, request: GenerationRequest) -> list[GuardedSequence]:
        """Returns one sequence for each choice that is not cancelled; a beam search is one sequence."""
        sampling, indices, blocks = request.sampling, sorted(request.unfinished), 0
        drafted = sampling.num_assistant_tokens or (ASSISTANT_TOKENS if self.info.speculative else 0)
        if sampling.beams > 1:
            each = self._blocks(request.max_tokens) + BEAM_SPARE_BLOCKS
            indices, blocks = [0], self._blocks(len(request.prompt)) + sampling.beams * each
        return [
            GuardedSequence(
                request=request,
                index=index,
                headroom=1 + drafted,
                blocks=blocks or self._blocks(len(request.prompt) + request.max_tokens + 1 + drafted),
                echo=sampling.prompt_logprobs and index == 0,
            )
            for index in indices
        ]

    def cancel(self, request_id: int, index: int | None) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        cancelled = request.cancel(index)
        if not request.unfinished:
            del self.requests[request_id]
            self.waiting.dequeued(request)
            self.waiting.remove(request)
        for sequence in request.sequences:
            if not request.unfinished or (sequence.index in cancelled and not sequence.beams):
                if self._half_computed(sequence):
                    sequence.cancel_pending = True
                else:
                    self._abort(sequence)
            sequence.drop_images()

    def handle(self, command: Record) -> None:
        """Refuses a command, since openvino_genai has no call for any of the engine's further commands."""
        if isinstance(command, ResetPrefixCache):
            raise BadRequest("only the pipeline PAGED can reset its prefix cache")
        raise NotSupported(command.unhandled)

    def close(self) -> None:
        """Does nothing, since there is nothing to save."""

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.running),
            queued=len(self.waiting),
            kv_blocks_used=self.used_blocks,
            kv_blocks_total=self.total_blocks,
            state_bytes=self.info.state_bytes * sum(s.request.sampling.beams for s in self.running),
            steps=self._steps,
            recoveries=self._recoveries,
            speculative=bool(self.info.speculative),
            **self._drafts.stats(),
        )

    # --- into the pipeline and out of it

    def admit(self, *, compiling: bool = False) -> None:
        """Starts waiting sequences in the order of the queue. If one has to wait, none after it starts."""
        images_added = False
        while len(self.running) < self.waiting.slots and (group := self.waiting.next_group()) is not None:
            sequence = self.waiting.pop(group)
            # Encoding images blocks everything else, so between two steps only one request with images is added.
            blocked = (compiling and sequence.constrained) or (images_added and sequence.has_images)
            if blocked or not self._fits(sequence):
                self.waiting.restore([sequence])
                return
            images_added = images_added or sequence.has_images
            self._start(sequence)

    def _fits(self, sequence: GuardedSequence) -> bool:
        """Returns whether a sequence may start in addition to the running ones.

        A sequence with echo starts alone: if any sequence is before it in the batch, GenAI returns log probabilities of
        other tokens as those of the prompt. Sequences after it do no harm.
        """
        together = [sequence, *self.running]
        if not self.running or sequence.echo:
            return not self.running
        if self.info.speculative:
            return sum(min(s.blocks, self._blocks(s.length) + SPARE_BLOCKS) for s in together) <= self.total_blocks
        return not any(s.beams for s in together) or sum(s.blocks for s in together) <= self.total_blocks

    def _start(self, sequence: GuardedSequence) -> None:
        try:
            sequence.handle = self.pipeline.add(sequence.pipeline_request())
        except BadRequest as error:
            self._fail(sequence.request, error)
            return
        self.waiting.started(sequence)
        sequence.last_output_step = self._steps
        sequence.started, sequence.started_at = True, self.waiting.clock()
        self.running.append(sequence)

    def _make_room(self) -> None:
        """Ends the newest sequences with draft tokens until the next step fits the cache."""
        if not self.info.speculative:
            return
        needed = {s: self._blocks(s.length + s.headroom) for s in self.running}
        for sequence in reversed(self.running[1:]):
            if sum(needed[s] for s in self.running) <= self.total_blocks:
                return
            if not sequence.cancel_pending:
                self._fail(sequence.request, EngineFailure(OUT_OF_CACHE))

    def _half_computed(self, sequence: GuardedSequence) -> bool:
        """Returns whether a prompt may be partly in the prefix cache, but not completely.

        Prompts are computed in the order in which they were added, each with the tokens of a step that the one before
        does not use. So after a prompt that is not finished, none has been started.
        """
        prefilling = sequence.handle is not None and self._steps > sequence.last_output_step
        if not self.info.prefix_caching or not prefilling or sequence.has_output:
            return False
        return sequence is next(s for s in self.running if not s.has_output)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.info.block_size)

    @property
    def used_blocks(self) -> int:
        """The number of blocks of the running sequences, as far as it is known from outside of GenAI."""
        return min(self.total_blocks, sum(self._blocks(s.length) for s in self.running))

    def _abort(self, sequence: GuardedSequence) -> None:
        """Removes a sequence from the queue or from the pipeline, whatever its state."""
        if sequence.handle is not None:
            sequence.handle.cancel()
            self._cleanup_due = True
            self._remove(sequence)
        else:
            self.waiting.remove(sequence.request, sequence.index)

    def _finish(self, sequence: GuardedSequence) -> None:
        """Notes that a sequence has its last token, and ends its computation, whatever its state in the pipeline."""
        request = sequence.request
        request.unfinished.discard(sequence.index)
        if sequence.beams:
            request.unfinished.clear()
        if not request.unfinished:
            self.requests.pop(request.id, None)
        if sequence.handle is not None and self.pipeline.status(sequence.handle) == "running":
            sequence.handle.cancel()
            self._cleanup_due = True

    def _remove(self, sequence: GuardedSequence) -> None:
        """Frees the handle of a sequence that has left the pipeline."""
        self.running.remove(sequence)
        self.waiting.stopped(sequence)
        sequence.handle = None
        sequence.drop_images()

    def _fail(self, request: GenerationRequest, error: RequestError) -> None:
        """Ends all sequences of a request with an error."""
        if self.requests.get(request.id) is request:
            self.out.append(Failed(request.id, error.to_wire()))
            self.cancel(request.id, None)

    # --- steps

    def step(self) -> None:
        try:
            self._make_room()
            self._steps += 1
            self.pipeline.step()
            self._cleanup_due = False
            has_output = self._collect()
        except Exception as error:  # any error of the pipeline; the other requests continue
            self._recover(error)
            return
        if has_output:
            self._stuck_since = None
            if self._steps % CHECK_EVERY == 0:
                self._check_status([s for s in self.running if s.last_output_step <= self._steps - CHECK_EVERY])
        else:
            self._after_empty_step()

    def _collect(self) -> bool:
        """Reads the outputs of all sequences, and returns whether there was any."""
        ready = [s for s in self.running if s.handle is not None and s.handle.can_read()]
        empty: list[GuardedSequence] = []
        for sequence in ready:
            if sequence.handle is not None and self._read(sequence, empty):
                self._remove(sequence)
        self._check_status(empty)
        return bool(ready)

    def _read(self, sequence: GuardedSequence, empty: list[GuardedSequence]) -> bool:
        """Reads an output of a sequence, for which `can_read` is True. Returns whether it was the last one.

        Then the caller removes the sequence. If the output is empty, the sequence is added to `empty`.
        """
        assert sequence.handle is not None
        outputs = sequence.handle.read()
        if not outputs:
            empty.append(sequence)
            return False
        if not sequence.has_output:
            sequence.has_output = True
            if not sequence.index:
                since_start_ms = 1000 * (self.waiting.clock() - sequence.started_at)
                self.out.append(Prefilled(sequence.request.id, None, since_start_ms))
        if sequence.cancel_pending:
            self._finish(sequence)
            return True
        if not sequence.request.prompt_counted:
            self._count_prompt(sequence)
        sequence.last_output_step = self._steps
        before = len(sequence.generated)
        finished = emit(sequence, outputs, self.out)
        if self.info.speculative and before:  # the output with the prompt has only one token
            self._drafts.drafts += 1
            for position in range(len(sequence.generated) - before - 1):
                self._drafts.accept(position)
        if finished:
            self._finish(sequence)
        return finished

    def _count_prompt(self, sequence: GuardedSequence) -> None:
        """Sends the exact number of prompt tokens, which a VLM pipeline knows only when the request is finished."""
        counter, request = self.pipeline.image_token_counter, sequence.request
        assert counter is not None
        assert request.image_prompt is not None
        tokens = counter.prompt_tokens(sequence.handle) if sequence.handle is not None else 0
        if tokens:
            request.prompt_counted = True
            counter.learn(request.image_prompt, tokens)
            self.out.append(Counted(request.id, tokens))

    def _after_empty_step(self) -> None:
        """Finds out why a step had no output. Raises errors.EngineLost."""
        busy = self.pipeline.busy()
        self._cleanup_due = busy and not self.running
        if not busy:
            self._check_status(list(self.running))
        if not busy or self.pipeline.scheduled():
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = self.waiting.clock()
        elif self.waiting.clock() - self._stuck_since > STUCK_S:
            self._stuck_since = None
            self._recover(TimeoutError("the pipeline does not schedule its requests"))

    def _check_status(self, sequences: list[GuardedSequence]) -> None:
        """Removes those of the sequences without output that the pipeline does not compute any more."""
        for sequence in sequences:
            handle = sequence.handle
            if handle is None or handle.can_read() or (status := self.pipeline.status(handle)) == "running":
                continue
            self._remove(sequence)
            if sequence.cancel_pending:
                self._finish(sequence)
            elif status == "finished":
                self.out.append(Tokens(sequence.request.id, sequence.index, [], None, "stop"))
                self._finish(sequence)
            else:
                self._fail(sequence.request, EngineFailure(OUT_OF_CACHE))

    def _recover(self, error: Exception) -> None:
        """Repairs the pipeline after a failed step. The running requests fail, and waiting ones go on.

        Raises errors.EngineLost if that is not possible, after all requests have failed.
        """
        self._recoveries += 1
        log.error("a step failed: %s", last_line(error))
        running = list(self.running)
        for sequence in running:
            if sequence.handle is not None:
                sequence.handle.cancel()
            self._remove(sequence)
        self._cleanup_due = False
        if not self.pipeline.recoverable or not self._drain():
            lost = EngineFailure(RESTARTING)
            self.out += [Failed(request_id, lost.to_wire()) for request_id in self.requests]
            for request in self.requests.values():
                self.waiting.remove(request)
                self.waiting.dequeued(request)
            self.requests.clear()
            raise EngineLost(last_line(error))
        for sequence in running:
            self._fail(sequence.request, EngineFailure("The engine failed while it computed this request."))

    def _drain(self) -> bool:
        """Steps until the pipeline is idle, and returns whether that was possible."""
        try:
            for _ in range(DRAIN_STEPS):
                if not self.pipeline.busy():
                    return True
                self.pipeline.step()
        except Exception as error:  # any error of the pipeline, which the caller then gives up
            log.error("the pipeline cannot recover: %s", last_line(error))
            return False
        return not self.pipeline.busy()
