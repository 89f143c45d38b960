"""Samplers that steer the probability of the tokens that are chosen, and so learn from each of them.

Mirostat (Basu et al., 2021) aims at a mean surprise, the negative logarithm of the probability in bits; adaptive-p
(https://github.com/ggml-org/llama.cpp/pull/17927) at a mean probability. The semantics are those of llama.cpp.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.sampling import reductions
from ....types import Json
from .filters import FORBIDDEN, Candidates, Row, top_k

OBSERVED = 100
"""The number of the likeliest tokens from which the first Mirostat estimates Zipf's exponent."""
WIDTH, PEAK, SHARPNESS = 0.3, 5.0, 10.0
"""The constants of adaptive-p: the distance from the target in which a token's logit falls from the peak, and how
steeply."""


class Selector(Protocol):
    """The last sampler of a chain."""

    def apply(self, candidates: Candidates) -> None:
        """Changes the candidates, from which the token is sampled then."""

    def accept(self, token: int) -> None:
        """Learns from the token that was sampled."""


class _Known:
    """The probabilities of the candidates of the latest step."""

    def __init__(self) -> None:
        self._ids: NDArray[np.int64] | None = None
        self._found: Row = np.zeros(0, np.float32)

    def note(self, candidates: Candidates, found: Row) -> None:
        self._ids, self._found = candidates.ids, found

    def take(self, token: int) -> float:
        """Returns the probability of a token, 0 if it was no candidate, and forgets all."""
        found, self._found = self._found, np.zeros(0, np.float32)
        if self._ids is None:
            return float(found[token]) if token < len(found) else 0.0
        [place] = np.searchsorted(self._ids, [token]).tolist()
        return float(found[place]) if place < len(found) and self._ids[place] == token else 0.0


class Mirostat:
    """The first version, which estimates how many of the likeliest tokens have the aimed-at surprise, or the second."""

    def __init__(self, settings: Json) -> None:
        """Begins with a limit of twice the target."""
        self._second = settings["mirostat"] == 2
        self._target, self._rate = float(settings["mirostat_tau"]), float(settings["mirostat_eta"])
        self.limit = 2 * self._target
        """The limit of a token's surprise in bits, which is called mu."""
        self._known = _Known()

    def apply(self, candidates: Candidates) -> None:
        if self._second:
            found = candidates.probabilities()
            places = np.flatnonzero((found >= 2.0 ** min(1.0, -self.limit)) & (found > 0))
            if len(places):
                candidates.keep(places)
            else:
                top_k(candidates, 1)
        else:
            top_k(candidates, self._count(candidates))
        self._known.note(candidates, candidates.probabilities())

    def _count(self, candidates: Candidates) -> int:
        """Returns the number of tokens to keep, by an estimate of the exponent in Zipf's law."""
        logits, vocab = candidates.logits, len(candidates.row)
        likeliest = np.sort(logits[reductions.largest(logits[None], min(OBSERVED, len(logits)))[0]])[::-1]
        likeliest = likeliest[likeliest > FORBIDDEN].astype(np.float64)
        if len(likeliest) < 2:
            return 1
        ranks = np.arange(1, len(likeliest))
        steps = np.log((ranks + 1) / ranks)
        exponent = float((steps * -np.diff(likeliest)).sum() / (steps * steps).sum())
        excess = exponent - 1
        scale = -np.expm1(-excess * np.log(vocab))  # 1 - vocab ** -excess
        bits = self.limit + np.log2(excess / scale if scale else 1 / np.log(vocab))
        if exponent <= 0:  # all are equally likely
            return len(candidates) if bits > 0 else 1
        return int(np.exp2(min(bits / exponent, np.log2(len(candidates))))) or 1

    def accept(self, token: int) -> None:
        probability = self._known.take(token)
        if probability > 0:
            self.limit -= self._rate * (-np.log2(probability) - self._target)


class AdaptiveP:
    """Prefers tokens whose probability is near a target, which moves against the mean of those chosen before."""

    def __init__(self, settings: Json) -> None:
        """Begins as if all earlier tokens had the aimed-at probability."""
        self._target, self._decay = float(settings["adaptive_target"]), float(settings["adaptive_decay"])
        self._weight = 1 / (1 - self._decay)
        self._sum = self._target * self._weight
        self._known = _Known()

    def apply(self, candidates: Candidates) -> None:
        found = candidates.probabilities()
        self._known.note(candidates, found)
        aim = min(1.0, max(0.0, 2 * self._target - self._sum / self._weight))
        distance = np.abs(found - np.float32(aim)) / np.float32(WIDTH)
        changed = np.float32(PEAK) - np.float32(SHARPNESS) * distance * distance / (1 + distance)
        candidates.logits = np.where(candidates.logits > FORBIDDEN, changed, FORBIDDEN).astype(np.float32)

    def accept(self, token: int) -> None:
        probability = self._known.take(token)
        self._sum = probability + self._decay * self._sum
        self._weight = 1 + self._decay * self._weight
