"""Beam search as transformers and openvino_genai do it, one group of beams. The engine
carries out what is decided here: it forks the KV cache.

Of the 2 * width best continuations, those that end the text among the first `width` are finished hypotheses; the best
others become the next beams. The search is over when `width` hypotheses are finished and the best running beam cannot
beat the worst of them: by its score so far (early_stopping False), or whatever follows ("never"). With True it is over
as soon as they are `width`. The score of a hypothesis is its cumulative log probability divided
by length ** length_penalty, the end token counted.

Forbidden tokens (of -inf) are no continuations: a beam without any other is dropped, and the search goes on with fewer
beams, down to none; it may then have found fewer hypotheses than its width.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.params import NO_LOGPROBS, NoToken
from ....engine.paged.sampling.logits_processors import FORBIDDEN, NONE_LEFT, edit
from ....engine.paged.sampling.logprobs import TokenLogprobs, log_sum_exp, top
from ....engine.paged.sequence import Continuation, Hypothesis, Sequence


class BeamSearch:
    """Searches the likeliest texts of one sequence with several beams: a sequence.Search."""

    def __init__(self, first: Sequence) -> None:
        """Begins with a single beam.

        Args:
            first: The sequence that computes the prompt.
        """
        self._params = first.params
        self._first = first
        self.width = first.params.beams
        self.beams = [first]
        self.finished: list[Hypothesis] = []
        """The hypotheses so far."""

    def begin_again(self) -> Sequence:
        """Implements Search.begin_again."""
        first = self._first
        del first.ids[first.prompt :]
        first.score, first.logprobs, first.new_details, self.finished = 0.0, [], [], []
        first.matcher = None  # it is made again when the sequence starts
        first.counts = first.thinking = None  # of tokens that are not there any more
        self.beams = [first]
        return first

    def advance(self, beams: Seq[Sequence], logits: NDArray[np.float32]) -> list[Continuation]:
        """Implements Search.advance."""
        width, vocab = self._params.beams, logits.shape[1]
        raw = scores = np.subtract(logits, log_sum_exp(logits)[:, None], dtype=np.float32)
        dead: dict[int, NoToken] = {}
        if self._params.edited or beams[0].matcher is not None:
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
        """Returns the likeliest or the named tokens of each row of log probabilities; [] if the request wants none."""
        ids = list(self._params.logprob_token_ids)
        if ids:
            return [list(zip(ids, row[ids].tolist(), strict=True)) for row in raw]
        if self._params.logprobs > 0:
            return top(raw, np.zeros(len(raw)), self._params.logprobs)
        return [[] for _ in raw] if self._params.logprobs != NO_LOGPROBS else []

    def close(self, beams: Seq[Sequence]) -> list[Hypothesis]:
        """Implements Search.close."""
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
        """Returns whether the search is over; keeps the `width` best hypotheses once there are so many.

        Args:
            front: The best score of the running beams.
            made: The tokens that each of them has generated.
            most: The tokens that they may generate.
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
    """Applies the request's parameters to each logits row; returns, by place, the error of beams with no token left."""
    dead: dict[int, NoToken] = {}
    for place, (row, beam) in enumerate(zip(logits, beams, strict=True)):
        try:
            edit(row, beam)
        except NoToken as error:
            dead[place] = error
            row[:] = 0
    return dead
