"""A pipeline of openvino_genai as a generation.backend.Backend: its steps and their outputs.

A step or a sequence has no output while a long prompt is computed, when the pipeline ended a sequence without any, or
when it is stuck. GenAI ends a request for which it has no KV blocks without output; only the status of the handle
(IGNORED) shows it.

Once a step has thrown, GenAI's pipeline throws on every later one, and cancelling the request at fault does not help.
Cancelling all and stepping until idle does (measured: one step, 0.7 ms, no block lost); those that were interrupted
are added again with their generated tokens, and continue as if nothing had happened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ....config import EngineConfig
from ....engine_types import EngineStats
from ....errors import BadRequest, EngineFailure, NotSupported
from ...errors import EngineLost, last_line
from ...generation.backend import WaitingRequests
from ...generation.grammar_limits import too_complex
from ...generation.pipeline import ImagePlaceholders, LongTextEncoder
from ...generation.sequence import GenerationRequest
from ...generation.spec_decode_stats import SpecDecodeStats
from ...protocol import Counted, Failed, Prefilled, Record, ResetPrefixCache, Tokens
from .outputs import Diverged, emit
from .pipeline import Pipeline
from .scheduler import GuardedScheduler
from .sequence import GuardedSequence
from .slow_steps import SlowSteps

log = logging.getLogger(__name__)

CHECK_EVERY = 16
"""Steps without output after which a sequence's status is looked up (1 us); a long prompt takes many steps."""
STUCK_S = 1.0
"""A pipeline that is busy and schedules nothing for this long is stuck."""
MAX_DROPPED = 2
"""How often a sequence that the pipeline dropped is added again."""
DRAIN_STEPS = 8
"""Steps after which a pipeline is idle that was told to cancel everything."""


class GuardedPipeline(GuardedScheduler):
    """A Backend that keeps a pipeline from what it cannot do. recoveries: failed steps."""

    def __init__(self, pipeline: Pipeline, max_running: int, *, across: bool = False) -> None:
        super().__init__(pipeline, max_running, across=across)
        self.info, self.vocabulary, self.grammars = pipeline.info, pipeline.vocabulary, pipeline.grammars
        self.image_placeholders: ImagePlaceholders | None = pipeline.image_token_counter
        self.image_queue: WaitingRequests | None = None
        self.long_text_encoder: LongTextEncoder | None = pipeline.long_text_encoder
        self.recoveries = 0
        self._speculative = bool(pipeline.info.speculative)
        self._drafts = SpecDecodeStats()
        self._empty_outputs: list[GuardedSequence] = []  # sequences of this step
        self._diverged: list[GuardedSequence] = []  # sequences of this step
        self._stuck_since: float | None = None
        self._slow_steps = SlowSteps()

    @classmethod
    def from_config(cls, pipeline: Pipeline, config: EngineConfig) -> GuardedPipeline:
        """Takes the limits of the options.

        A draft model that takes fewer sequences than the main one would keep the others waiting inside GenAI for ever.
        """
        limits = (config.max_num_seqs, config.draft_max_num_seqs, pipeline.info.max_sequences)
        return cls(pipeline, min(limit for limit in limits if limit), across=config.priority_across_clients)

    # --- generation.backend.Backend

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.pipeline.encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return self.pipeline.decode(tokens, skip_special_tokens)

    def check(self, request: GenerationRequest) -> None:
        """Refuses what GenAI cannot combine: beams ignore a grammar and do not go with drafts, min_tokens is filled
        with token 0 at the end of a grammar, and a prompt that is found in the prefix cache has no logits.
        """
        sampling, info = request.sampling, self.info
        if sampling.beams > 1 and info.speculative:
            raise BadRequest("beam search is not possible with speculative or prompt lookup decoding", param="best_of")
        if sampling.prompt_logprobs and info.prefix_caching:
            raise BadRequest(
                "log probabilities of the prompt need a server that was started with --enable_prefix_caching false",
                param="echo",
            )
        if sampling.prompt_logprobs and sampling.beams > 1:
            raise BadRequest("log probabilities of the prompt cannot be combined with beam search", param="best_of")
        if request.constraint and sampling.beams > 1:
            raise BadRequest("structured output cannot be combined with beam search (best_of > 1)", param="best_of")
        if request.constraint and sampling.min_tokens:
            raise BadRequest("structured output cannot be combined with min_tokens", param="min_tokens")
        request.native = self.sequences(request)[0].pipeline_request()
        self.pipeline.check(request.native)

    def step(self) -> Iterable[str]:
        slow: list[str] = []
        try:
            self.start_step()
            self._slow_steps.begin(self.running)
            self.pipeline.step()
            self.cleanup_due = False
            suspect = self._slow_steps.suspect(compiling=self.compiling)
            if suspect is not None:
                log.warning("request %d is ended: its grammar makes steps slow", suspect.id)
                slow.append(suspect.constraint)
                self.fail(suspect, too_complex("it takes too long to match"))
            has_output = self._collect()
        except Exception as error:  # of the pipeline, whatever it raises: the other requests go on
            self._recover(error)
            return slow
        if has_output:
            self._stuck_since = None
            if self.steps % CHECK_EVERY == 0:
                self._check_status([s for s in self.running if s.last_output_step <= self.steps - CHECK_EVERY])
        else:
            self._after_empty_step()
        return slow

    def handle(self, command: Record) -> None:
        """Implements Backend.handle: openvino_genai has no call for any of them."""
        if isinstance(command, ResetPrefixCache):
            raise BadRequest("this pipeline cannot forget its prefix cache; PAGED can")
        raise NotSupported(command.unhandled)

    def close(self) -> None:
        """Implements Backend.close: there is nothing to keep."""

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.running),
            queued=len(self.waiting),
            kv_blocks_used=self.used_blocks,
            kv_blocks_total=self.total_blocks,
            state_bytes=self.info.state_bytes * sum(s.request.sampling.beams for s in self.running),
            steps=self.steps,
            preemptions=self.preemptions,
            recoveries=self.recoveries,
            speculative=self._speculative,
            **self._drafts.stats(),
        )

    # --- outputs

    def _collect(self) -> bool:
        """Reads the outputs of all sequences; returns whether there was any."""
        ready = [s for s in self.running if s.handle is not None and s.handle.can_read()]
        for sequence in [s for s in ready if self._read(s)]:
            self.remove(sequence)
        if self._empty_outputs:
            empty, self._empty_outputs = self._empty_outputs, []
            self._check_status(empty)
        self._fail_diverged()
        return bool(ready)

    def _read(self, sequence: GuardedSequence) -> bool:
        """Reads one output of a sequence; returns whether that was its last. Only after can_read."""
        assert sequence.handle is not None
        outputs = sequence.handle.read()
        if not outputs:
            self._empty_outputs.append(sequence)
            return False
        if not sequence.has_output:
            self.prompt_computed(sequence)
            if not (sequence.index or sequence.generated or sequence.already_sent):
                since_start_ms = 1000 * (self.waiting.clock() - sequence.started_at)
                self.out.append(Prefilled(sequence.request.id, sequence.cached, since_start_ms))
        if sequence.cancel_pending:
            self.finish(sequence)
            return True
        if not sequence.request.prompt_counted:
            self._count_prompt(sequence)
        sequence.last_output_step = self.steps
        before = len(sequence.generated)
        try:
            finished = emit(sequence, outputs, self.out)
        except Diverged:
            self._diverged.append(sequence)
            return False
        if self._speculative and before:  # the output that comes with the prompt is the first token alone
            self._drafts.drafts += 1
            for position in range(len(sequence.generated) - before - 1):
                self._drafts.accept(position)
        if finished:
            self.finish(sequence)
        else:
            self.grow(sequence)
        return finished

    def _count_prompt(self, sequence: GuardedSequence) -> None:
        """Sends the exact number of prompt tokens; a VLM pipeline knows it when the request is finished."""
        counter, request = self.pipeline.image_token_counter, sequence.request
        assert counter is not None
        assert request.image_prompt is not None
        tokens = counter.prompt_tokens(sequence.handle) if sequence.handle is not None else 0
        if tokens:
            request.prompt_counted = True
            counter.learn(request.image_prompt, tokens)
            self.out.append(Counted(request.id, tokens))

    def _fail_diverged(self) -> None:
        diverged, self._diverged = self._diverged, []
        for sequence in diverged:
            error = EngineFailure("The engine had to restart this answer and generated different tokens.")
            self.fail(sequence.request, error)

    # --- no output

    def _after_empty_step(self) -> None:
        """Finds out why a step had no output. Raises errors.EngineLost."""
        busy = self.pipeline.busy()
        self.cleanup_due = busy and not self.running
        if not busy:
            self._check_status(list(self.running))
        if not busy or self.pipeline.scheduled():
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = self.waiting.clock()
        elif self.waiting.clock() - self._stuck_since > STUCK_S:
            self._stuck_since = None
            self._recover(TimeoutError("the pipeline schedules nothing"))

    def _check_status(self, sequences: list[GuardedSequence]) -> None:
        """Removes those of these sequences without output that the pipeline does not compute any more."""
        for sequence in reversed(sequences):
            handle = sequence.handle
            if handle is None or handle.can_read():
                continue
            status = self.pipeline.status(handle)
            if status == "running":
                continue
            self.remove(sequence)
            if sequence.cancel_pending:
                self.finish(sequence)
            elif status == "lost":
                self._add_again(sequence)
            else:
                self.out.append(Tokens(sequence.request.id, sequence.index, [], None, "stop"))
                self.finish(sequence)

    def _add_again(self, sequence: GuardedSequence) -> None:
        """The pipeline dropped a sequence, by its own rule that ends all running requests when blocks are short."""
        sequence.times_dropped += 1
        log.warning("the pipeline dropped request %d (%d)", sequence.request.id, sequence.times_dropped)
        if sequence.times_dropped > MAX_DROPPED:
            self.fail(sequence.request, EngineFailure("The engine ran out of KV cache for this request."))
        else:
            self.requeue(sequence)

    # --- a failed step

    def _recover(self, error: Exception) -> None:
        """Repairs the pipeline, and queues the sequences again that are not at fault.

        Raises errors.EngineLost when that is impossible, with every request failed.
        """
        self.recoveries += 1
        log.error("a step failed: %s", last_line(error))
        finished = {s for s in self.running if self._read_rest(s)}
        interrupted = [s for s in self.running if s not in finished and not s.cancel_pending]
        for sequence in list(self.running):
            if sequence.handle is not None:
                sequence.handle.cancel()
            self.remove(sequence)
        self.cleanup_due = False
        self._empty_outputs.clear()
        self._fail_diverged()
        if not self.pipeline.recoverable or not self._drain():
            lost = EngineFailure("The engine failed and is being restarted; please try again.")
            self.out += [Failed(request_id, lost.to_wire()) for request_id in self.requests]
            self.requests.clear()
            self.waiting.clear()
            raise EngineLost(last_line(error))
        interrupted = [s for s in interrupted if s.request.id in self.requests]
        at_fault = self.suspects.blame(interrupted)
        for sequence in reversed(self.suspects.order(interrupted)):
            if at_fault is None or sequence.request is not at_fault.request:
                self.requeue(sequence)
        if at_fault is not None:
            self.fail(at_fault.request, EngineFailure("The engine failed while it computed this request."))

    def _read_rest(self, sequence: GuardedSequence) -> bool:
        """Reads every output that is ready; returns whether the sequence is finished with them."""
        try:
            while sequence.handle is not None and sequence.handle.can_read():
                if self._read(sequence):
                    return True
        except Exception as error:  # a poisoned pipeline may refuse this as well: then the tokens are computed again
            log.warning("unread tokens are lost: %s", last_line(error))
        return False

    def _drain(self) -> bool:
        """Steps until the pipeline is idle; returns whether that was possible."""
        try:
            for _ in range(DRAIN_STEPS):
                if not self.pipeline.busy():
                    return True
                self.pipeline.step()
        except Exception as error:  # of the pipeline, which the caller gives up then
            log.error("the pipeline does not recover: %s", last_line(error))
            return False
        return not self.pipeline.busy()
