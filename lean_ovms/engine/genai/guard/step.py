"""One step of the pipeline and its outputs, also when it has none or fails.

A step or a sequence has no output while a long prompt is computed, when the pipeline ended a sequence without any, or
when it is stuck. GenAI ends a request for which it has no KV blocks without output; only the status of the handle
(IGNORED) shows it.
"""

from __future__ import annotations

import logging

from ....engine_types import EngineStats
from ....errors import EngineFailure
from ...errors import last_line
from ...generation.grammar_limits import too_complex
from ...generation.sequence import GenerationRequest
from ...generation.spec_decode_stats import SpecDecodeStats
from ...protocol import Counted, Prefilled, Tokens
from . import recovery
from .outputs import Diverged, emit, emit_detailed
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


class Stepper:
    """Steps the pipeline of a scheduler. recoveries: failed steps."""

    def __init__(self, scheduler: GuardedScheduler) -> None:
        self.recoveries = 0
        self._drafts = SpecDecodeStats()
        self._scheduler = scheduler
        self._pipeline = scheduler.pipeline
        self._out = scheduler.out
        self._speculative = bool(self._pipeline.info.speculative)
        self._empty_outputs: list[GuardedSequence] = []  # sequences of this step
        self._diverged: list[GuardedSequence] = []  # sequences of this step
        self._stuck_since: float | None = None
        self._slow_steps = SlowSteps()
        self.too_slow: list[str] = []  # grammars that made steps slow, in the last step

    def stats(self) -> EngineStats:
        """A snapshot of all counts."""
        scheduler, drafts = self._scheduler, self._drafts
        return EngineStats(
            running=len(scheduler.running),
            queued=len(scheduler.waiting),
            kv_blocks_used=scheduler.kv.used,
            kv_blocks_total=scheduler.kv.total,
            state_bytes=self._pipeline.info.state_bytes * sum(s.request.sampling.beams for s in scheduler.running),
            steps=scheduler.steps,
            preemptions=scheduler.preemptions,
            recoveries=self.recoveries,
            speculative=self._speculative,
            drafts=drafts.drafts,
            drafted=drafts.drafted,
            accepted=drafts.accepted,
            accepted_by_position=list(drafts.by_position),
        )

    def step(self) -> list[str]:
        """One step of the pipeline, with its outputs in the scheduler's `out`. Raises errors.EngineLost.

        Returns grammars that make steps slow.
        """
        scheduler = self._scheduler
        self.too_slow.clear()
        try:
            scheduler.start_step()
            self._slow_steps.begin(scheduler.running)
            self._pipeline.step()
            scheduler.cleanup_due = False
            suspect = self._slow_steps.suspect(compiling=scheduler.compiling)
            if suspect is not None:
                self._end_slow(suspect)
            has_output = self._collect()
        except Exception as error:  # of the pipeline, whatever it raises: the other requests go on
            self._recover(error)
            return self.too_slow
        if has_output:
            self._stuck_since = None
            if scheduler.steps % CHECK_EVERY == 0:
                old = scheduler.steps - CHECK_EVERY
                self._check_status([s for s in scheduler.running if s.last_output_step <= old])
        else:
            self._after_empty_step()
        return self.too_slow

    # --- outputs

    def _collect(self) -> bool:
        """Read the outputs of all sequences; whether there was any."""
        has_output = False
        finished: list[GuardedSequence] = []
        for sequence in self._scheduler.running:
            handle = sequence.handle
            if handle is not None and handle.can_read():
                has_output = True
                if self._read(sequence):
                    finished.append(sequence)
        for sequence in finished:
            self._scheduler.remove(sequence)
        if self._empty_outputs:
            empty, self._empty_outputs = self._empty_outputs, []
            self._check_status(empty)
        if self._diverged:
            self._fail_diverged()
        return has_output

    def _read(self, sequence: GuardedSequence) -> bool:
        """Read one output of a sequence; True if that was its last. Only after can_read."""
        scheduler = self._scheduler
        assert sequence.handle is not None
        outputs = sequence.handle.read()
        if not outputs:
            self._empty_outputs.append(sequence)
            return False
        if not sequence.has_output:
            self._prompt_computed(sequence)
        if sequence.cancel_pending:
            scheduler.finish(sequence)
            return True
        if not sequence.request.prompt_counted:
            self._count_prompt(sequence)
        sequence.last_output_step = scheduler.steps
        before = len(sequence.generated) if self._speculative else 0
        try:
            finished = (emit if sequence.plain else emit_detailed)(sequence, outputs, self._out)
        except Diverged:
            self._diverged.append(sequence)
            return False
        if self._speculative and before:  # the output that comes with the prompt is the first token alone
            self._drafts.drafts += 1
            for position in range(len(sequence.generated) - before - 1):
                self._drafts.accept(position)
        if finished:
            scheduler.finish(sequence)
        elif sequence.length + sequence.headroom > sequence.capacity and not sequence.reserved_blocks:
            scheduler.grow(sequence)
        return finished

    def _prompt_computed(self, sequence: GuardedSequence) -> None:
        self._scheduler.prompt_computed(sequence)
        if not (sequence.index or sequence.generated or sequence.already_sent):
            since_start_ms = 1000 * (self._scheduler.waiting.clock() - sequence.started_at)
            self._out.append(Prefilled(sequence.request.id, sequence.cached, since_start_ms))

    def _count_prompt(self, sequence: GuardedSequence) -> None:
        """Send the exact number of prompt tokens; a VLM pipeline knows it when the request is finished."""
        counter, request = self._pipeline.image_token_counter, sequence.request
        assert counter is not None
        assert request.image_prompt is not None
        tokens = counter.prompt_tokens(sequence.handle) if sequence.handle is not None else 0
        if tokens:
            request.prompt_counted = True
            counter.learn(request.image_prompt, tokens)
            self._out.append(Counted(request.id, tokens))

    def _fail_diverged(self) -> None:
        diverged, self._diverged = self._diverged, []
        for sequence in diverged:
            error = EngineFailure("The engine had to restart this answer and generated different tokens.")
            self._scheduler.fail(sequence.request, error)

    def _end_slow(self, request: GenerationRequest) -> None:
        """End a request whose grammar delays all others."""
        log.warning("request %d is ended: its grammar makes steps slow", request.id)
        self.too_slow.append(request.constraint)
        self._scheduler.fail(request, too_complex("it takes too long to match"))

    # --- no output

    def _after_empty_step(self) -> None:
        """Find out why a step had no output. Raises errors.EngineLost."""
        scheduler = self._scheduler
        busy = self._pipeline.busy()
        scheduler.cleanup_due = busy and not scheduler.running
        if not busy:
            self._stuck_since = None
            self._check_status(list(scheduler.running))
        elif self._pipeline.scheduled():
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = scheduler.waiting.clock()
        elif scheduler.waiting.clock() - self._stuck_since > STUCK_S:
            self._stuck_since = None
            self._recover(TimeoutError("the pipeline schedules nothing"))

    def _check_status(self, sequences: list[GuardedSequence]) -> None:
        """Remove those of these sequences without output that the pipeline does not compute any more."""
        scheduler = self._scheduler
        for sequence in reversed(sequences):
            handle = sequence.handle
            if handle is None or handle.can_read():
                continue
            status = self._pipeline.status(handle)
            if status == "running":
                continue
            scheduler.remove(sequence)
            if sequence.cancel_pending:
                scheduler.finish(sequence)
            elif status == "lost":
                self._add_again(sequence)
            else:
                self._out.append(Tokens(sequence.request.id, sequence.index, [], None, "stop"))
                scheduler.finish(sequence)

    def _add_again(self, sequence: GuardedSequence) -> None:
        """The pipeline dropped it, by its own rule that ends all running requests when blocks are short."""
        sequence.times_dropped += 1
        log.warning("the pipeline dropped request %d (%d)", sequence.request.id, sequence.times_dropped)
        if sequence.times_dropped > MAX_DROPPED:
            self._scheduler.fail(sequence.request, EngineFailure("The engine ran out of KV cache for this request."))
        else:
            self._scheduler.requeue(sequence)

    # --- a failed step

    def _recover(self, error: Exception) -> None:
        """Remove all sequences from the pipeline and repair it. Raises errors.EngineLost."""
        scheduler = self._scheduler
        self.recoveries += 1
        log.error("a step failed: %s", last_line(error))
        finished = {s for s in scheduler.running if self._read_rest(s)}
        removed = scheduler.cancel_running()
        scheduler.cleanup_due = False
        self._empty_outputs.clear()
        self._fail_diverged()
        interrupted = [
            s for s in removed if s not in finished and s.request.id in scheduler.requests and not s.cancel_pending
        ]
        recovery.recover(scheduler, interrupted, error)

    def _read_rest(self, sequence: GuardedSequence) -> bool:
        """Read every output that is ready; True if the sequence is finished with them."""
        try:
            while sequence.handle is not None and sequence.handle.can_read():
                if self._read(sequence):
                    return True
        except Exception as error:  # a poisoned pipeline may refuse this as well: then the tokens are computed again
            log.warning("unread tokens are lost: %s", last_line(error))
        return False
