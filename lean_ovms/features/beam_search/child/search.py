"""Beam search with one group of beams, as in transformers and openvino_genai.

This module decides which beams continue; the engine forks the KV cache for them. Of the 2 * width best continuations,
those that end the text among the first `width` are finished hypotheses, and the best others become the next beams. The
search is over when `width` hypotheses are finished and the best running beam cannot beat the worst of them: by its
score so far (early_stopping False), or whatever follows ("never"). With early_stopping True it is over as soon as
`width` are finished. The score of a hypothesis is its cumulative log probability divided by length ** length_penalty,
counting the end token.

Forbidden tokens (logits of -inf) are not continuations. A beam that has no others is dropped, and the search goes on
with fewer beams, down to none, so it may find fewer hypotheses than its width.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.sampling.logits_processors import FORBIDDEN, NONE_LEFT, edit
from ....engine.paged.sampling.logprobs import TokenLogprobs, log_sum_exp, top
from ....engine.paged.sequence import NoToken, Sequence, forked
from ....engine.paged.step_runner import tokens_record
from ....engine.protocol import ABSENT, Record, Tokens


class Continuation(NamedTuple):
    """A candidate of a beam search: a beam with one more token."""

    parent: Sequence
    """The beam that is extended."""
    token: int
    """The new token."""
    score: float
    """The log probability of the whole text."""
    logprob: float
    """The token's log probability, from the model's unprocessed logits."""
    detail: TokenLogprobs | None
    """The token's log probability, rank and alternatives; None if the request does not ask for log probabilities."""


class Hypothesis(NamedTuple):
    """A completed text of a beam search."""

    ids: list[int]
    """The ids of the tokens."""
    logprobs: list[float]
    """The log probabilities of these tokens."""
    score: float
    """The log probability of the text, divided by length ** length_penalty."""
    details: list[TokenLogprobs]
    """The log probability, rank and alternatives of each token; empty if the request does not ask for them."""


class BeamSearch:
    """Searches for the likeliest texts of one sequence with several beams."""

    def __init__(self, first: Sequence) -> None:
        """Begins with a single beam, the sequence that computes the prompt."""
        self._params = first.params
        self._first = first
        self.width = first.params.beams
        self.beams = [first]
        self.finished: list[Hypothesis] = []
        """The hypotheses so far."""
        self._best: list[Hypothesis] = []  # set when the search is over
        self._following: list[Continuation] = []

    def begin_again(self) -> Sequence:
        """Forgets everything but the prompt, and returns the sequence that computes it."""
        first = self._first
        del first.ids[first.prompt :]
        first.score, first.logprobs, first.new_details, self.finished = 0.0, [], [], []
        first.matcher = None  # created again when the sequence starts
        first.counts = first.thinking = None  # they describe tokens that have been removed
        self.beams = [first]
        return first

    def choose(self, beams: list[Sequence], logits: NDArray[np.float32]) -> None:
        """Chooses the next beams. Raises NoToken if no beam can continue, and none is complete."""
        self._following = self._continuations(beams, logits)

    def advance(self, leave: Callable[[Sequence], None], fork: Callable[[Sequence, Sequence], None]) -> bool:
        """Replaces each beam by one of its continuations, and forks it for others. Returns whether the search ends."""
        following, self._following = self._following, []
        parents = {id(one.parent) for one in following}
        for beam in self.beams:
            if id(beam) not in parents:
                leave(beam)
        number, pairs = max(beam.index for beam in self.beams), []
        for place, one in enumerate(following):
            beam = one.parent
            if any(later.parent is beam for later in following[place + 1 :]):
                number += 1
                beam = forked(one.parent, number)
                fork(one.parent, beam)
            pairs.append((beam, one))
        for beam, one in pairs:  # after all forks, because this changes parents that continue
            beam.ids.append(one.token)
            beam.score = one.score
            beam.logprobs.append(one.logprob)
            if one.detail is not None:
                beam.new_details.append(one.detail)
            beam.follow(one.token)
        self.beams = [beam for beam, _ in pairs]
        full = [beam for beam in self.beams if len(beam.ids) >= beam.limit]
        if following and not full:
            return False
        self._best = self._close(full)
        return True

    def records(self) -> list[Record]:
        """Returns the record of each choice that is not cancelled: its text, best first, or that no text was found."""
        request, stops, found = self._first.request, self._first.stops, list[Record]()
        for rank in sorted(request.unfinished):
            if rank >= len(self._best):
                found.append(Tokens(request.id, rank, [], None, ABSENT))
                continue
            text = self._best[rank]
            reason = "stop" if text.ids and text.ids[-1] in stops else "length"
            found.append(tokens_record(request, rank, text.ids, text.details, reason))
        return found

    def _continuations(self, beams: list[Sequence], logits: NDArray[np.float32]) -> list[Continuation]:
        """Returns the next beams, best first, or [] when the search is over. The logits are changed in place."""
        width, vocab = self._params.beams, logits.shape[1]
        raw = scores = np.subtract(logits, log_sum_exp(logits)[:, None], dtype=np.float32)
        dead: dict[int, NoToken] = {}
        if beams[0].edited:
            dead = _edit(logits, beams)
            scores = np.subtract(logits, log_sum_exp(logits)[:, None], dtype=np.float32)
            scores[list(dead)] = FORBIDDEN
        totals = (scores + np.array([beam.score for beam in beams], np.float32)[:, None]).reshape(-1)
        count = min(2 * width, len(totals))
        best = np.argpartition(totals, len(totals) - count)[len(totals) - count :]
        best = best[totals[best] > FORBIDDEN]
        front = max((beam.score for place, beam in enumerate(beams) if place not in dead), default=0.0)
        following: list[Continuation] = []
        alternatives = self._alternatives(raw)
        for rank, place in enumerate(best[np.argsort(-totals[best], kind="stable")].tolist()):
            beam, token = divmod(place, vocab)
            logprob = float(raw[beam, token])
            rank_of = int(np.count_nonzero(raw[beam] > raw[beam, token])) + 1 if alternatives else 0
            detail = TokenLogprobs(logprob, rank_of, alternatives[beam]) if alternatives else None
            one = Continuation(beams[beam], token, float(totals[place]), logprob, detail)
            if token in beams[0].stops:
                if rank < width:
                    self._finish(one)
            elif len(following) < width:
                following.append(one)
        if not following and not self.finished:
            raise dead.get(0) or NoToken(NONE_LEFT)
        return [] if self._over(front, beams[0].generated, beams[0].limit - beams[0].prompt) else following

    def _alternatives(self, raw: NDArray[np.float32]) -> list[list[tuple[int, float]]]:
        """Returns the likeliest tokens or those that the request names for each row; [] if it asks for no logprobs."""
        params = self._params
        if not params.logprobs:
            return []
        if ids := list(params.logprob_token_ids):
            return [list(zip(ids, row[ids].tolist(), strict=True)) for row in raw]
        return top(raw, np.zeros(len(raw)), params.top_logprobs) if params.top_logprobs else [[] for _ in raw]

    def _close(self, beams: list[Sequence]) -> list[Hypothesis]:
        """Ends the search, and returns the best hypotheses, best first; running beams count as hypotheses."""
        for beam in beams:
            ids = beam.ids[beam.prompt :].tolist()
            self.finished.append(Hypothesis(ids, beam.logprobs, self._score(beam.score, len(ids)), beam.new_details))
        return sorted(self.finished, key=lambda text: -text.score)[: self._params.beams]

    def _finish(self, one: Continuation) -> None:
        ids = [*one.parent.ids[one.parent.prompt :], one.token]
        logprobs = [*one.parent.logprobs, one.logprob]
        details = [*one.parent.new_details, *([one.detail] if one.detail is not None else [])]
        self.finished.append(Hypothesis(ids, logprobs, self._score(one.score, len(ids)), details))

    def _over(self, front: float, made: int, most: int) -> bool:
        """Returns whether the search is over. Once there are `width` hypotheses, only the best of them are kept.

        Args:
            front: The best cumulative log probability of the running beams.
            made: The number of tokens that each beam has generated.
            most: The most tokens that a beam may generate.
        """
        width, stopping = self._params.beams, self._params.early_stopping
        if len(self.finished) < width:
            return False
        self.finished = sorted(self.finished, key=lambda text: -text.score)[:width]
        if stopping is True:
            return True
        best_length = most if stopping == "never" and self._params.length_penalty > 0 else made
        return made > 0 and self.finished[-1].score >= self._score(front, best_length)

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self._params.length_penalty)


def _edit(logits: NDArray[np.float32], beams: Seq[Sequence]) -> dict[int, NoToken]:
    """Applies sampling parameters and grammars to each row of logits. Returns the errors of beams without tokens."""
    dead: dict[int, NoToken] = {}
    for place, (row, beam) in enumerate(zip(logits, beams, strict=True)):
        try:
            edit(row, beam)
        except NoToken as error:
            dead[place] = error
            row[:] = 0
    return dead
