"""The paged engine's steps: schedule, compute, sample, append. A request that fails does not affect others.

Not thread-safe. An exception out of `step` leaves everything consistent: the step can be tried again, or all requests
cancelled.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from ..generation.guesses import GuessCounts
from . import logprobs
from .adapters import AdapterTable
from .beam_search import BeamSearch, Continuation
from .block_manager import BlockManager
from .grammar import Matcher, Prepare, one_by_one
from .logits import NoToken
from .model_inputs import Chunk, ModelInputs
from .network import Network
from .params import Params
from .prompt_lookup import PromptLookup
from .proposer import Proposer
from .rows import Rows
from .sampler import Sampled, SamplingBatch, sample
from .scheduler import Scheduler, Step
from .sequence import GUESSES, Request, Sequence, forked

Lines = NDArray[np.float32]
MAX_ROWS = 1024
"""Sequences at once, however many tokens a step may have (as many as the context, when prompts are not split)."""
MAX_SEED = (1 << 64) - 1


class Engine:
    """Continuous batching on one model. scheduled: requests that the last step computed for. guesses: counted."""

    def __init__(
        self,
        network: Network,
        *,
        blocks: int,
        block_size: int,
        context: int,
        step_tokens: int,
        max_sequences: int,
        states: int = 0,
        split: bool = True,
        caching: bool = True,
        prepare: Prepare = one_by_one,
        tile: int = 1,
        proposer: Proposer | None = None,
        adapters: AdapterTable | None = None,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        """max_sequences: of one request (n, beams). split, caching: as in Scheduler. prepare: a step's masks.

        states: sequences for whose states there is memory; 0: no limit. Others wait.

        tile: as in ModelInputs; at most block_size, and 1 for a hybrid network, which has no row for padding.
        proposer: of guesses for requests with `lookahead`; None: prompt lookup. adapters: that requests may name.
        clock: of what steps cost; CPU time, because other processes make a step longer without more work in it.
        """
        most = max(min(step_tokens, MAX_ROWS), max_sequences)
        rows = Rows(min(most, states or most), context, block_size)
        network.allocate(blocks + (tile > 1), rows.total)
        self._network = network
        self._rows = rows
        self.blocks = BlockManager(blocks, block_size)
        adapters = adapters or AdapterTable(network, (), 0)
        self.scheduler = Scheduler(
            network,
            self.blocks,
            rows,
            step_tokens,
            proposer or PromptLookup(),
            adapters,
            split=split,
            caching=caching,
        )
        self.max_sequences = rows.total
        self.steps = self.scheduled = 0
        self.guesses = GuessCounts()
        self._prepare = prepare
        self._inputs = ModelInputs(network, rows, tile=tile, spare=blocks, adapters=adapters)
        self._batch = SamplingBatch(())
        self._running: Step | None = None
        self._clock = clock
        self._began = 0.0
        self._cancelled: list[Request] = []
        self._arrived = 0

    def add(
        self, tokens: Seq[int], params: Params, *, done: int = 0, echo: bool = False, matcher: Matcher | None = None
    ) -> Request:
        """Queue a request for the next steps. Everything must be in range: ids in the vocabulary, at least one.

        done: how many of the tokens, at the end, count as generated. echo: the first output begins with the prompt.
        """
        self._arrived += 1
        request = Request(params, self._arrived, self._cancelled)
        ids = array("q", tokens)
        sequence = Sequence(
            request,
            0,
            ids,
            prompt=len(ids),
            counted=len(ids) - done,
            limit=len(ids) + params.max_tokens,
            seed=params.seed,
            stops=params.stops,
            matcher=matcher,
            echo=echo,
        )
        if params.beams > 1:
            request.search = BeamSearch(params, matcher.fork() if matcher is not None else None)
        request.sequences.append(sequence)
        self.scheduler.waiting.append(sequence)
        return request

    def busy(self) -> bool:
        """Requests wait or run, or are cancelled and not yet freed by a step, or a step is started."""
        scheduler = self.scheduler
        waiting = scheduler.waiting or scheduler.prefilling or scheduler.decoding
        return bool(waiting or self._cancelled or self._running is not None)

    def start(self) -> bool:
        """Begin the next step, which `step` ends; whether there is one.

        Until `step`, requests may be added, read and cancelled. Raises what openvino raises.
        """
        if self._running is not None:
            return True
        step = self._schedule()
        if step is None:
            return False
        self._began = self._clock()
        try:
            self._network.start(bool(step.chunks))
        except BaseException:
            self._step_failed(step)
            raise
        self._running = step
        return True

    def step(self) -> None:
        """Compute once for every sequence that can be scheduled. Raises what openvino raises."""
        started, self._running = self._running, None
        step = started or self._schedule()
        if step is None:
            return
        if started is None:
            self._began = self._clock()
        try:
            lines = self._computed(step, started=started is not None)
        except BaseException:
            self._step_failed(step)
            raise
        if step.chunks:
            self.scheduler.timed(step, self._clock() - self._began)
        self.steps += 1
        self._clear()
        self._rows.computed[step.rows] += 1
        if step.chunks or self._batch.searching:
            self._process(step, lines)
        else:
            self._append_tokens(self._batch, sample(lines, self._batch))

    def _schedule(self) -> Step | None:
        """The next step, with its inputs written; None if there is nothing to compute."""
        self._clear()
        self.scheduled = 0
        step = self.scheduler.schedule()
        if step is None:
            return None
        self.scheduled = len(step.decoding) + len(step.chunks)
        try:
            self._inputs.write(step.rows, step.chunks, step.changed)
        except BaseException:
            self._step_failed(step)
            raise
        return step

    def _computed(self, step: Step, *, started: bool) -> Lines:
        """The logits of a step; the grammars' masks are prepared while the network computes."""
        try:
            if self._batch.sequences is not step.decoding:
                self._batch = SamplingBatch(step.decoding)
            matchers = self._matchers(step)
            if not started and not matchers:
                return self._network.infer(bool(step.chunks))
            if not started:
                self._network.start(bool(step.chunks))
                started = True
            self._prepare(matchers)
        finally:
            if started:
                lines = self._network.wait()
        return lines

    def _step_failed(self, step: Step) -> None:
        """It can be tried again; the inputs may be half written.

        Keys and values are written again to the same places. A state may have got the step's tokens already.
        """
        self._inputs.invalidate()
        self.scheduler.changed = True
        if self._network.hybrid:
            self.scheduler.recompute([*step.decoding, *(chunk.sequence for chunk in step.chunks)])

    def _clear(self) -> None:
        """Remove cancelled requests."""
        while self._cancelled:
            for sequence in self._cancelled.pop().sequences:
                self.scheduler.leave(sequence)

    def _matchers(self, step: Step) -> list[Matcher]:
        """Those whose masks the step's logits need."""
        sequences = [step.decoding[place] for place in self._batch.edited]
        sequences += [chunk.sequence for chunk in step.chunks if chunk.wanted]
        return [sequence.matcher for sequence in sequences if sequence.matcher is not None]

    # --- results of a step

    def _process(self, step: Step, lines: Lines) -> None:
        """Results of a step with prompts, guesses or beams."""
        owners, places = list(step.decoding), list(range(len(step.decoding)))
        at = len(owners)
        for chunk in step.chunks:
            first, at = at, at + chunk.wanted
            if chunk.sequence.row < 0:
                continue  # cancelled meanwhile
            if chunk.sequence.state == "decode":
                self._rows.computed[chunk.sequence.row] = chunk.start + 1
                owners.append(chunk.sequence)
                places.append(first)
            elif self._prompt_computed(chunk, lines[first:at]):
                for sequence in self._started(chunk.sequence):
                    owners.append(sequence)
                    places.append(at - 1)
        searches: dict[int, list[tuple[Sequence, int]]] = {}
        for sequence, place in zip(owners, places, strict=True):
            if sequence.request.search is not None:
                searches.setdefault(id(sequence.request), []).append((sequence, place))
        single = [(s, p) for s, p in zip(owners, places, strict=True) if s.request.search is None]
        self._sample(single, lines)
        for beams in searches.values():
            self._search([s for s, _ in beams], lines[[p for _, p in beams]])

    def _prompt_computed(self, chunk: Chunk, lines: Lines) -> bool:
        """Record a computed part of a prompt; True if it was the last."""
        sequence, end = chunk.sequence, chunk.start + chunk.length
        self.scheduler.computed(sequence, end)
        if sequence.needs_prompt_logprobs:
            following = sequence.ids[chunk.start + 1 : min(end + 1, sequence.prompt)]
            scored = lines[: len(following)]
            sequence.request.prompt_details += logprobs.details(
                scored, np.array(following, np.int64), sequence.params.prompt_logprobs
            )
        if end < len(sequence.ids):
            return False
        self.scheduler.decode(sequence)
        return True

    def _started(self, sequence: Sequence) -> list[Sequence]:
        """The texts that begin where a prompt ends: n of them, which share its blocks."""
        request, wanted = sequence.request, sequence.params.n
        if len(request.sequences) >= wanted:
            return [sequence]
        if not self.scheduler.make_room(sequence, wanted - 1):
            return []
        for index in range(1, wanted):
            child = forked(sequence, index, (sequence.seed + index) & MAX_SEED)
            self.scheduler.fork(sequence, child)
            request.sequences.append(child)
        return list(request.sequences)

    def _sample(self, wanting: list[tuple[Sequence, int]], lines: Lines) -> None:
        """A token for each, and one more for as long as it is the one that was guessed."""
        for sequence, _ in wanting:
            if sequence.guess and not sequence.ahead:
                self.guesses.begin(len(sequence.guess))
        position = 0
        while wanting:
            batch = SamplingBatch([sequence for sequence, _ in wanting])
            found = sample(lines[[place for _, place in wanting]], batch)
            self._append_tokens(batch, found)
            right = []
            for (sequence, place), token in zip(wanting, found.tokens.tolist(), strict=True):
                if not sequence.guess or sequence.row < 0:
                    continue
                right_one = sequence.guess.pop(0) == token
                if sequence.ahead:
                    sequence.credit = min(GUESSES, sequence.credit + (1 if right_one else -1))
                elif right_one:
                    self.guesses.accept(position)
                if right_one:
                    self._rows.computed[sequence.row] += 1
                    right.append((sequence, place + 1))
                else:
                    sequence.guess = []
            wanting = right
            position += 1

    def _append_tokens(self, batch: SamplingBatch, found: Sampled) -> None:
        """Append new tokens to sequences and tables. A sequence preempted meanwhile computes its token again later."""
        over: list[Sequence] = []
        sequences, newest, tokens = batch.sequences, self._rows.newest, found.tokens.tolist()
        for place, error in found.failed.items():  # first: what stands in for its token may be a stop token
            self._fail(sequences[place].request, error)
        for sequence, token in zip(sequences, tokens, strict=True):
            if sequence.row < 0:
                continue
            ids = sequence.ids
            ids.append(token)
            sequence.new_ids.append(token)
            sequence.request.ready = True
            newest[sequence.row] = token
            if len(ids) >= sequence.limit or token in sequence.stops:
                over.append(sequence)
        for place, detail in found.details.items():
            if sequences[place].row >= 0:
                sequences[place].new_details.append(detail)
        for place in batch.edited:
            if sequences[place].row >= 0 and sequences[place].follow(tokens[place]):
                over.append(sequences[place])
        for sequence in over:
            self._end(sequence)

    def _search(self, beams: list[Sequence], lines: Lines) -> None:
        """One step of a beam search."""
        request = beams[0].request
        search, width = request.search, request.params.beams
        assert search is not None
        if any(beam.row < 0 for beam in beams) or not self.scheduler.make_room(beams[0], width):
            return
        try:
            following = search.advance(beams, lines)
        except Exception as error:  # one request's fault must not end the step of all
            self._fail(request, error)
            return
        request.sequences = self._continued(beams, following)
        full = [beam for beam in request.sequences if len(beam.ids) >= beam.limit]
        if full or not following:
            request.final = search.close(full)
            request.final[0].prompt_details = request.prompt_details
            request.ready = True
            for beam in list(request.sequences):
                self.scheduler.leave(beam)
            request.end("finished")

    def _continued(self, beams: list[Sequence], following: list[Continuation]) -> list[Sequence]:
        """The next beams: one continuation goes on in its parent's place, others fork."""
        parents = {id(one.parent) for one in following}
        for beam in beams:
            if id(beam) not in parents:
                self.scheduler.leave(beam)
        number, pairs = max(beam.index for beam in beams), []
        for place, one in enumerate(following):
            beam = one.parent
            if any(later.parent is beam for later in following[place + 1 :]):
                number += 1
                beam = forked(one.parent, number, 0)
                self.scheduler.fork(one.parent, beam)
            pairs.append((beam, one))
        for beam, one in pairs:  # after all forks: a parent that goes on is another by then
            beam.ids.append(one.token)
            beam.score = one.score
            beam.logprobs.append(one.logprob)
            if one.detail is not None:
                beam.new_details.append(one.detail)
            self._rows.newest[beam.row] = one.token
            beam.follow(one.token)
        return [beam for beam, _ in pairs]

    def _end(self, sequence: Sequence) -> None:
        self.scheduler.leave(sequence)
        request = sequence.request
        if all(s.state == "over" for s in request.sequences):
            request.end("finished")

    def _fail(self, request: Request, error: Exception) -> None:
        for sequence in request.sequences:
            self.scheduler.leave(sequence)
            sequence.new_ids, sequence.new_details = [], []
        request.error = str(error)
        request.end("refused" if isinstance(error, NoToken) else "failed")
