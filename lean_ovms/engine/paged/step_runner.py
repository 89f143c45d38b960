"""Runs the steps of the paged engine: schedules, computes, samples and appends tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineFailure, RequestError
from ..generation.backend import SpecDecodeStats
from ..generation.fair_queue import GenerationRequest, repeats
from ..protocol import REPETITION, DetailedTokens, Drafted, Failed, Prefilled, Progress, PromptLogprobs, Record, Tokens
from .model_inputs import Chunk, ModelInputs
from .network import Network
from .parts import Prepare, StepHook
from .sampling import reductions
from .sampling.reductions import Logits
from .sampling.sampler import Sampled, SamplingBatch, sample
from .scheduler import Scheduler, Step
from .sequence import JUMP_FORWARD_SCORE, Matcher, Search, Sequence, request_error

if TYPE_CHECKING:
    from .sampling.logprobs import TokenLogprobs

log = logging.getLogger(__name__)


class Outputs:
    """Makes the records of each step's results for the front end. This is the hot path: it runs once per token."""

    def __init__(self, requests: dict[int, GenerationRequest]) -> None:
        """Begins without records. Requests that finish are removed from `requests`."""
        self.out: list[Record] = []
        """The records. It is always the same list object."""
        self.changed: list[Sequence] = []
        """The sequences with results for which no record has been made yet."""
        self._requests = requests

    def prompt(self, sequence: Sequence, tokens: int, taken_ms: float, *, complete: bool) -> None:
        """Makes the record of a prompt's progress, if the request asks for it, and the record of its end.

        Args:
            sequence: The sequence of the prompt.
            tokens: The number of tokens that are computed or were cached.
            taken_ms: The milliseconds since the sequence was started.
            complete: Whether the whole prompt is computed.
        """
        number = sequence.request.id
        cached = min(one.cached for one in sequence.request.sequences if one.cached >= 0)  # not of another choice's
        if sequence.request.sampling.report_progress and not sequence.index and tokens > sequence.reported:
            sequence.reported = tokens
            self.out.append(Progress(number, tokens, cached, taken_ms))
        if complete:
            self.out.append(Prefilled(number, cached, taken_ms))

    def fail(self, request: GenerationRequest, error: RequestError) -> bool:
        """Makes the record that a request has failed. Returns False if the request has ended already."""
        if self._requests.pop(request.id, None) is None:
            return False
        self.out.append(Failed(request.id, error.to_wire()))
        return True

    def emit(self) -> None:
        """Makes the records of the results of all sequences in `changed`."""
        changed, self.changed, out = self.changed, [], self.out
        for sequence in changed:
            request = sequence.request
            if sequence.search is not None:
                self._emit_texts(sequence, sequence.search)
            if sequence.index not in request.unfinished or not sequence.new_ids:
                continue
            ids, sequence.new_ids = sequence.new_ids, []
            if sequence.echo:
                self._emit_prompt(sequence, sequence.prompt_details)
            if sequence.reason is not None and sequence.params.num_assistant_tokens:
                out.append(Drafted(request.id, sequence.drafted, sequence.accepted))
            out.append(tokens_record(request, sequence.index, ids, sequence.new_details, sequence.reason))
            if sequence.new_details:
                sequence.new_details = []
            if sequence.reason is not None:
                request.unfinished.discard(sequence.index)
                if not request.unfinished:
                    self._requests.pop(request.id, None)

    def _emit_texts(self, first: Sequence, search: Search) -> None:
        """Makes the records of a beam search that is over."""
        request = first.request
        if first.echo and request.unfinished:
            self._emit_prompt(first, first.prompt_details)
        self.out += search.records()
        request.unfinished.clear()
        self._requests.pop(request.id, None)

    def _emit_prompt(self, sequence: Sequence, details: list[TokenLogprobs]) -> None:
        sequence.echo = False
        record = PromptLogprobs(sequence.request.id, [None, *(detail.logprob for detail in details)])
        record.ranks, record.top = [detail.rank for detail in details], [detail.top for detail in details]
        self.out.append(record)


def tokens_record(
    request: GenerationRequest, index: int, ids: list[int], details: list[TokenLogprobs], reason: str | None
) -> Tokens:
    """Returns the record of new tokens of a choice.

    Args:
        request: The request.
        index: The index of the choice.
        ids: The tokens.
        details: Their log probabilities, if the request asks for them.
        reason: The finish reason if the choice ends with these tokens; None if it does not end.
    """
    if not request.sampling.logprobs:
        return Tokens(request.id, index, ids, None, reason)
    values = [detail.logprob for detail in details]
    if not request.details:
        return Tokens(request.id, index, ids, values, reason)
    record = DetailedTokens(request.id, index, ids, values, reason)
    record.top = [detail.top for detail in details]
    return record


NOT_FINITE = "The model computed values that are not finite; its weights, or those of the LoRA adapter, may be damaged."
NOT_FINITE_CODE = "not_finite"
SHORT_S = 0.05
"""The seconds up to which a step is so short that commands wait for its end, since another thread takes time, too."""
OVERDUE_S = 5.0
"""The seconds of a step after which commands wait for its end, so that the front end notices an engine that hangs."""


class StepRunner:
    """Computes the steps that the scheduler decides on, and appends the resulting tokens to the sequences."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        inputs: ModelInputs,
        outputs: Outputs,
        hooks: list[StepHook],
        *,
        prepare: Prepare,
        clock: Callable[[], float],
    ) -> None:
        """Creates the runner, with no step running.

        Args:
            scheduler: Decides which sequences a step computes.
            network: The network, with its caches.
            inputs: Writes the inputs of a step.
            outputs: Makes the records of results.
            hooks: The features' hooks around the steps.
            prepare: Computes the token masks of a step's grammars while the network computes.
            clock: The clock, in seconds, with which steps are measured.
        """
        self.drafts = SpecDecodeStats()
        """The counts of draft tokens since the start."""
        self.running: Step | None = None
        """The step that was started and not completed; None if there is none."""
        self.scheduled: Step | None = None
        """The step that was scheduled last; None if there was nothing to compute."""
        self._scheduler = scheduler
        self._network = network
        self._tables = scheduler.tables
        self._inputs = inputs
        self._outputs = outputs
        self._hooks = hooks
        self._prepare = prepare
        self._clock = clock
        self._chosen_at = self._began = 0.0  # by `clock`
        self._began_at, self._prompts = 0.0, False  # by the system's clock; whether there were prompts to compute
        self._took_s = [0.0, 0.0]  # by the latest step without and with prompts
        self._waiter = ThreadPoolExecutor(1, "step")
        self._result: Future[Logits] | None = None  # of the started step, if `_waiter` waits for it
        self._batch = SamplingBatch(())
        self._cancelled: list[Sequence] = []  # cancelled while the started step computes for them

    @property
    def computing(self) -> bool:
        """Whether the started step is still computed, and `wake` will be called at its end."""
        return self._result is not None and not self._result.done() and time.monotonic() < self._began_at + OVERDUE_S

    @property
    def takes_long(self) -> bool:
        """Whether the latest step like the next one, with or without prompts, took longer than SHORT_S."""
        return self._took_s[bool(self._scheduler.batch.prefilling)] > SHORT_S

    def start(self, wake: Callable[[], None] | None = None) -> None:
        """Starts the next step, if there is one, for `compute`. Passes on openvino's exceptions.

        A thread calls `wake` when the step is computed; without it, only `compute` waits for that.
        """
        if (step := self._schedule()) is None:
            return
        self._start(step)
        self.running = step
        if wake is not None:
            with suppress(RuntimeError):  # there is no memory for a thread
                self._result = self._waiter.submit(self._network.wait)
                self._result.add_done_callback(lambda _: wake())

    def _start(self, step: Step) -> None:
        """Starts the network, and computes the masks of the step's grammars meanwhile."""
        try:
            self._network.start(bool(step.chunks))
            try:
                self._prepare(self._matchers(step))
            except BaseException:
                self._network.wait()
                raise
        except BaseException:
            self._step_failed()
            raise

    def compute(self) -> None:
        """Completes the started step, or computes a whole one. Exceptions of openvino are passed on."""
        step = self.running or self._schedule()
        if step is None:
            return
        result, self._result = self._result, None
        try:
            if result is not None:
                logits = result.result()
            elif self.running is None and not self._matchers(step):
                logits = self._network.infer(bool(step.chunks))
            else:
                if self.running is None:
                    self._start(step)
                logits = self._network.wait()
        except BaseException:
            self._step_failed()
            raise
        finally:
            self.running = None
        self._measure(step)
        scheduler, source = self._scheduler, self._scheduler.speculation.source
        if source is not None:
            source.computed(len(step.decoding), step.chunks)
        self.remove_cancelled()
        finite = reductions.finite(logits)
        unsure = set() if finite.all() else self._end_spoiled(step, logits, finite)
        scheduler.batch.decoded(step.rows)
        counted = self.drafts.drafted or 0, self.drafts.accepted
        drafting = all(c.sequence.state == "decode" and not c.sequence.jump_forward for c in step.chunks)
        if step.chunks or self._batch.searching:
            self._process(step, logits, unsure)
        else:
            self._outputs.changed += step.decoding
            self._append_tokens(self._batch, sample(logits, self._batch))
        if source is not None and drafting and scheduler.batch.speculating:
            drafted, accepted = (self.drafts.drafted or 0) - counted[0], self.drafts.accepted - counted[1]
            sequences = len(step.decoding) + len(step.chunks)
            source.learn(sequences, drafted, accepted, self._clock() - self._chosen_at)
        if scheduler.time_shares.active:
            scheduler.charge_time(step, self._clock() - self._chosen_at)

    def _measure(self, step: Step) -> None:
        """Counts a computed step, and has its duration learned for the sizes of chunks."""
        scheduler = self._scheduler
        scheduler.steps += 1
        self._took_s[self._prompts] = time.monotonic() - self._began_at
        if step.chunks:
            scheduler.timed(step, self._clock() - self._began)
            for hook in self._hooks:
                hook.end_step(len(step.decoding) + sum(chunk.length for chunk in step.chunks))

    def _schedule(self) -> Step | None:
        """Returns the next step after writing its inputs; None if there is nothing to compute."""
        self._chosen_at = self._clock()
        self._prompts = bool(self._scheduler.batch.prefilling)
        for hook in self._hooks:
            hook.begin_step()
        step = self.scheduled = self._scheduler.schedule()
        if step is None:
            return None
        try:
            self._inputs.write(step.rows, step.chunks, step.changed)
        except BaseException:
            self._step_failed()
            raise
        if self._batch.sequences is not step.decoding:
            self._batch = SamplingBatch(step.decoding)
        self._began, self._began_at = self._clock(), time.monotonic()
        return step

    def _step_failed(self) -> None:
        """Makes the next step write all inputs, since some may be incomplete."""
        self._inputs.invalidate()
        self._scheduler.batch.changed = True

    def _matchers(self, step: Step) -> list[Matcher]:
        """Returns the matchers whose masks apply to the step's logits."""
        sequences = [step.decoding[place] for place in self._batch.edited]
        sequences += [chunk.sequence for chunk in step.chunks if chunk.wanted]
        return [sequence.matcher for sequence in sequences if sequence.matcher is not None]

    # --- ends

    def cancel(self, sequences: list[Sequence]) -> None:
        """Ends cancelled sequences, but not before the end of a running step that computes them."""
        if self.running is not None:
            self._cancelled += sequences
        else:
            self._scheduler.discard(sequences)

    def remove_cancelled(self) -> None:
        """Ends the sequences that were cancelled while a step was running."""
        gone, self._cancelled = self._cancelled, []
        self._scheduler.discard(gone)

    def _end_spoiled(self, step: Step, logits: Logits, finite: NDArray[np.bool_]) -> set[Sequence]:
        """Fails the requests whose logits are not finite, before any of their blocks are cached.

        Args:
            step: The step.
            logits: Its logits, [rows, vocab]; rows that are not finite are replaced by zeros.
            finite: Whether each row of the logits is finite, [rows].

        Returns:
            The sequences that continue without their draft tokens, since only the logits after a draft token are not
            finite.
        """
        logits[~finite] = 0
        spoiled = [sequence for sequence, good in zip(step.decoding, finite.tolist(), strict=False) if not good]
        unsure, at = set[Sequence](), len(step.decoding)
        for chunk in step.chunks:
            rows, at = finite[at : at + chunk.wanted], at + chunk.wanted
            if not rows.all():
                drafted = chunk.sequence.state == "decode" and rows[0]
                (unsure.add if drafted else spoiled.append)(chunk.sequence)
        for sequence in spoiled:
            if sequence.row >= 0:
                log.error("request %d: the model's logits are not finite", sequence.request.id)
                for each in sequence.request.sequences:
                    self._scheduler.prefixes.spoil(each)
                self._scheduler.fail(sequence.request, EngineFailure(NOT_FINITE, code=NOT_FINITE_CODE))
        return unsure

    # --- results of a step

    def _process(self, step: Step, logits: Logits, unsure: set[Sequence]) -> None:
        """Processes the logits of a step with prompts, draft tokens or beams.

        Args:
            step: The step.
            logits: The logits: one row for each plain sequence, then the selected rows of each chunk.
            unsure: The sequences of which only the logits after their newest token can be used.
        """
        wanting = [(sequence, place) for place, sequence in enumerate(step.decoding)]
        at = len(wanting)
        for chunk in step.chunks:
            first, at = at, at + chunk.wanted
            sequence = chunk.sequence
            if sequence.row < 0:
                continue  # cancelled meanwhile
            if sequence.state == "decode":
                self._scheduler.prefixes.accept(sequence, len(sequence.ids))
                if sequence in unsure:
                    self._scheduler.speculation.reject(sequence)
                wanting.append((sequence, first))
            elif self._prompt_computed(chunk, logits[first:at]):
                wanting.append((sequence, at - 1))
        searches: dict[int, list[tuple[Sequence, int]]] = {}
        for sequence, place in wanting:
            if sequence.search is not None:
                searches.setdefault(id(sequence.search), []).append((sequence, place))
        single = [(sequence, place) for sequence, place in wanting if sequence.search is None]
        self._outputs.changed += [sequence for sequence, _ in single]  # also if an error ends this step
        self._sample(single, logits)
        for beams in searches.values():
            self._search([s for s, _ in beams], logits[[p for _, p in beams]])

    def _prompt_computed(self, chunk: Chunk, logits: Logits) -> bool:
        """Records that a part of a prompt is computed. Returns True if it was the last part."""
        sequence, end = chunk.sequence, chunk.start + chunk.length
        self._scheduler.prefixes.computed(chunk)
        if sequence.needs_prompt_logprobs:
            from .sampling import logprobs  # late: few requests ask for them

            following = sequence.ids[chunk.start + 1 : min(end + 1, sequence.prompt)]
            scored = logits[: len(following)]
            sequence.prompt_details += logprobs.details(
                scored, np.array(following, np.int64), sequence.params.prompt_top_logprobs
            )
        complete = end == len(sequence.ids)
        if not sequence.index and not sequence.output_since and sequence.request.unfinished:
            taken_ms = 1000 * (self._scheduler.waiting.clock() - sequence.started_at)
            self._outputs.prompt(sequence, min(end, sequence.prompt), taken_ms, complete=complete)
        if complete:
            self._scheduler.decode(sequence)
        return complete

    def _sample(self, wanting: list[tuple[Sequence, int]], logits: Logits) -> None:
        """Samples a token for each sequence, and further ones as long as each equals the draft token at its position.

        If a token equals the alternative to a draft token, one more token is sampled after it. The alternative's keys
        and values are not in the right place, so they are computed again in the next step; moving them would depend on
        their compression.
        """
        for sequence, _ in wanting:
            if sequence.draft_tokens and not sequence.jump_forward:
                count = len(sequence.draft_tokens) + len(sequence.alternatives)
                self.drafts.begin(count)
                sequence.drafted.append(count)
                sequence.accepted.append(0)
        position = 0
        while wanting:
            batch = SamplingBatch([sequence for sequence, _ in wanting])
            found = sample(reductions.rows(logits, [place for _, place in wanting]), batch)
            self._append_tokens(batch, found)
            following = []
            for (sequence, place), token in zip(wanting, found.tokens.tolist(), strict=True):
                if sequence.draft_tokens and sequence.row >= 0:
                    behind = self._verify(sequence, place, position, token)
                    following += [(sequence, behind)] if behind is not None else []
            wanting = following
            position += 1

    def _verify(self, sequence: Sequence, place: int, position: int, token: int) -> int | None:
        """Compares a sampled token with the next draft token and the alternative to it.

        Args:
            sequence: The sequence.
            place: The row of the logits from which the token was sampled.
            position: The position of the draft token in the draft, from 0.
            token: The sampled token.

        Returns:
            The row of the logits after the token; None if the token equals neither.
        """
        behind_alternative = place + len(sequence.draft_tokens) + 1 + position
        expected = sequence.draft_tokens.pop(0) == token
        accepted = expected or token in sequence.alternatives[:1]
        del sequence.alternatives[:1]
        if sequence.jump_forward:
            score = sequence.jump_forward_score + (1 if accepted else -1)
            sequence.jump_forward_score = min(JUMP_FORWARD_SCORE, score)
        elif accepted:
            self.drafts.accept(position)
            sequence.accepted[-1] += 1
        if expected:
            self._scheduler.prefixes.accept(sequence, int(self._tables.computed[sequence.row]) + 1)
            return place + 1
        self._scheduler.speculation.reject(sequence)
        return behind_alternative if accepted else None

    def _append_tokens(self, batch: SamplingBatch, found: Sampled) -> None:
        """Appends new tokens to sequences and tables; a sequence that was preempted will compute its token again."""
        over: list[Sequence] = []
        sequences, newest, tokens = batch.sequences, self._tables.newest, found.tokens.tolist()
        for place, error in found.failed.items():  # first, since the substitute for its token may be a stop token
            self._scheduler.fail(sequences[place].request, request_error(error))
        for sequence, token in zip(sequences, tokens, strict=True):
            if sequence.row < 0:
                continue
            ids = sequence.ids
            ids.append(token)
            sequence.new_ids.append(token)
            newest[sequence.row] = token
            if token in sequence.stops:
                sequence.reason = "stop"
                over.append(sequence)
            elif len(ids) >= sequence.limit:
                sequence.reason = "length"
                over.append(sequence)
        for place, detail in found.details.items():
            if sequences[place].row >= 0:
                sequences[place].new_details.append(detail)
        over += [s for s in batch.repeating if s.row >= 0 and s.reason is None and _repeats(s)]
        over += [s for i in batch.edited if (s := sequences[i]).row >= 0 and _grammar_over(s, tokens[i])]
        for sequence in over:
            self._scheduler.finish(sequence)

    def _search(self, beams: list[Sequence], logits: Logits) -> None:
        """Processes the logits of one step of a beam search."""
        search, request = beams[0].search, beams[0].request
        assert search is not None
        if any(beam.row < 0 for beam in beams) or not self._scheduler.make_room(beams[0], search.width):
            return
        try:
            search.choose(beams, logits)
        except Exception as error:  # one request's fault must not end the step of all
            self._scheduler.fail(request, request_error(error))
            return
        over = search.advance(self._scheduler.leave, self._scheduler.batch.fork)
        for beam in search.beams:
            self._tables.newest[beam.row] = beam.ids[-1]
        if over:
            [first] = request.sequences
            self._outputs.changed.append(first)
            self._scheduler.end(first)


def _repeats(sequence: Sequence) -> bool:
    """Returns whether a sequence ends because it repeats itself, and if so sets its finish reason."""
    assert sequence.repetition is not None
    long_enough = sequence.generated >= sequence.params.min_tokens
    if long_enough and repeats(sequence.ids, len(sequence.ids), *sequence.repetition, begin=sequence.prompt):
        sequence.reason = REPETITION
    return sequence.reason is not None


def _grammar_over(sequence: Sequence, token: int) -> bool:
    """Passes a token to a sequence's grammar and counts. Returns True if the sequence ends with its grammar."""
    if not sequence.follow(token) or sequence.reason is not None:
        return False
    sequence.reason = "stop"
    return True
