"""Beam search over the logits of a window's beams.

It works as in transformers and openvino-genai. Of twice as many candidates as there are beams, the best continue. A
text that ends is kept; its score is its log probability divided by its length to the power of length_penalty. The
search is over when no beam can become better than the worst of the kept texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..params import TranscribeParams
from .logits import Rules, log_sum, penalize

Array = NDArray[np.float32]


@dataclass(slots=True)
class Beam:
    """A hypothesis of a beam search."""

    tokens: list[int] = field(default_factory=list)
    """The tokens so far."""
    logprobs: list[float] = field(default_factory=list)
    """The log probability of each of these tokens."""
    total: float = 0.0
    """The sum of the log probabilities, including that of the end."""


class Beams:
    """A beam search for the text of one window."""

    def __init__(self, width: int, limit: int, eot: int, rules: Rules, params: TranscribeParams, times: bool) -> None:
        """Begins a search.

        Args:
            width: The number of beams.
            limit: The most tokens of a text.
            eot: The token that ends a text.
            rules: Masks the tokens that may not come next.
            params: The request's penalties and length penalty.
            times: Whether the text has timestamps.
        """
        self.width = width
        self.tokens = np.full((width, 1), eot, np.int64)
        """The tokens [width, 1] that the decoder gets next."""
        self.parents = np.arange(width, dtype=np.int32)
        """The beam whose state each of these tokens continues [width]."""
        self._beams = [Beam()]  # the beams are still equal, so the first step looks only at the first
        self._ended: list[tuple[float, Beam]] = []
        self._limit = limit
        self._eot = eot
        self._rules = rules
        self._params = params
        self._times = times

    def advance(self, logits: Array) -> bool:
        """Continues each beam by a token, and returns whether the search is over. The logits may be changed."""
        going: list[tuple[Beam, int]] = []
        for rank, (total, logprob, parent, token) in enumerate(self._candidates(logits)):
            beam = self._beams[parent]
            if token == self._eot:
                if rank < self.width:
                    self._keep(Beam(beam.tokens, beam.logprobs, total), len(beam.tokens) + 1)
            elif len(going) < self.width:
                going.append((Beam([*beam.tokens, token], [*beam.logprobs, logprob], total), parent))
        self._beams = [beam for beam, _ in going]
        for place, (beam, parent) in enumerate(going):
            self.tokens[place], self.parents[place] = beam.tokens[-1], parent
        return self._is_over()

    def _candidates(self, logits: Array) -> list[tuple[float, float, int, int]]:
        """Returns the best candidates, best first, as (total log probability, log probability, beam, token)."""
        found = []
        for number, beam in enumerate(self._beams):
            of_beam = logits[number]
            penalize(of_beam, beam.tokens, self._params)
            self._rules.apply(of_beam, beam.tokens, self._times)
            logprobs = of_beam - log_sum(of_beam)
            best = np.argpartition(-logprobs, min(2 * self.width, len(logprobs) - 1))[: 2 * self.width]
            found += [
                (beam.total + value, value, number, token)
                for token, value in zip(best.tolist(), logprobs[best].tolist(), strict=True)
                if value > -np.inf
            ]
        return sorted(found, key=lambda row: -row[0])[: 2 * self.width]

    def _score(self, total: float, length: int) -> float:
        return total / float(max(1, length) ** self._params.length_penalty)

    def _keep(self, beam: Beam, length: int) -> None:
        self._ended.append((self._score(beam.total, length), beam))
        self._ended.sort(key=lambda row: -row[0])
        del self._ended[self.width :]

    def _is_over(self) -> bool:
        if not self._beams:
            return True
        length = len(self._beams[0].tokens)
        if length >= self._limit:
            for beam in self._beams:
                self._keep(beam, length)
            return True
        return len(self._ended) >= self.width and self._score(self._beams[0].total, length) <= self._ended[-1][0]

    @property
    def best(self) -> Beam:
        """The best text that has ended, or the best beam if none has."""
        return self._ended[0][1] if self._ended else self._beams[0]
