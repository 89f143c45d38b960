"""Random tokens from logits, by temperature, top_k, min_p and top_p. Pure numpy.

top_k, then min_p, then top_p, all after the temperature, as in openvino_genai (transformers differs in min_p's place).
Random numbers depend on the seed and the place in the text and on nothing else: equal logits give the same text
in every batch and after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from ..sequence import Sequence
from . import reductions
from .reductions import Floats

Tokens = NDArray[np.int64]
Numbers = NDArray[np.uint64]

MAX_TRIALS = 64


class Sampling:
    """The parameters of the sequences whose tokens are drawn at random, as arrays."""

    def __init__(self, places: list[int], sequences: Seq[Sequence]) -> None:
        """Makes the arrays.

        Args:
            places: The places of these sequences in the batch.
            sequences: All sequences of the batch.
        """
        self.places = places
        self.sequences = [sequences[i] for i in places]
        params = [s.params for s in self.sequences]
        self.temperature = np.array([one.temperature for one in params], np.float32)[:, None]
        self.top_k = np.array([one.top_k for one in params], np.int64)[:, None]
        self.top_p = np.array([one.top_p for one in params], np.float64)
        self.min_p = np.array([one.min_p for one in params], np.float32)[:, None]
        self.seeds = np.array([s.seed for s in self.sequences], np.uint64)

    def positions(self) -> Numbers:
        """Returns the places, in their completions, of the tokens to be sampled."""
        return np.array([s.generated for s in self.sequences], np.uint64)


def uniform(seeds: Numbers, places: Numbers, trial: int) -> NDArray[np.float64]:
    """Returns numbers in [0, 1) for each seed and place: a counter through splitmix64's mixing function, twice."""
    mixed = _mix(seeds + np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed ^ (places * np.uint64(0xD1342543DE82EF95) + np.uint64(trial)))
    result: NDArray[np.float64] = (mixed >> np.uint64(11)) * 2.0**-53
    return result


def _mix(z: Numbers) -> Numbers:
    """Mixes bits by mix64variant13 of Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Numbers = z ^ (z >> np.uint64(31))
    return mixed


def sample_top_k(logits: Floats, sampling: Sampling, part: slice, positions: Numbers) -> Tokens:
    """Samples tokens with a top_k, from so many sorted logits of each row. Of equal ones at the border some are in."""
    top_k = np.minimum(sampling.top_k[part], logits.shape[1])
    most, rows = int(top_k.max()), np.arange(len(logits))[:, None]
    ids = reductions.largest(logits, most)
    values = logits[rows, ids]
    order = np.argsort(-values, axis=-1, kind="stable")
    ids, values = ids[rows, order], values[rows, order]
    weights = np.exp(((values - values[:, :1]) / sampling.temperature[part]).astype(np.float64))
    weights[np.arange(most) >= top_k] = 0
    weights[weights < sampling.min_p[part]] = 0
    sums = weights.cumsum(axis=-1)
    weights[sums - weights >= sampling.top_p[part, None] * sums[:, -1:]] = 0
    sums = weights.cumsum(axis=-1)
    target = uniform(sampling.seeds[part], positions, 0)[:, None] * sums[:, -1:]
    chosen: Tokens = ids[rows[:, 0], np.minimum((sums <= target).sum(axis=-1), most - 1)]
    return chosen


def sample_full(logits: Floats, sampling: Sampling, part: slice, positions: Numbers, trial: int = 0) -> Tokens:
    """Samples tokens without a top_k, and without sorting: from all tokens, and again if one is outside of the nucleus.

    Args:
        logits: The logits [n, vocab].
        sampling: The parameters of all sequences.
        part: The sequences among them that the logits are of.
        positions: The place of the token in each sequence's completion, [n].
        trial: The number of the random numbers that are used up already.
    """
    weights = weights_of(logits, sampling.temperature[part], sampling.min_p[part])
    chosen = reductions.locate(
        weights, reductions.column_sums(weights), uniform(sampling.seeds[part], positions, trial)
    )
    return in_nucleus(weights, chosen, sampling, part, positions, trial)


def in_nucleus(
    weights: Floats, chosen: Tokens, sampling: Sampling, part: slice, positions: Numbers, trial: int = 0
) -> Tokens:
    """Returns these tokens, with others in the place of those that are outside of top_p.

    If a token is outside (the likelier ones alone make top_p up) it and all that are not likelier go, and another is
    sampled: the result is distributed as samples from the nucleus are. Equally likely ones are in together.

    Args:
        weights: The weights [n, vocab] by which the tokens were sampled, the greatest of each row 1; they are changed.
        chosen: The tokens [n]; they are changed.
        sampling: The parameters of all sequences.
        part: The sequences among them that the weights are of.
        positions: The place of the token in each sequence's completion, [n].
        trial: How often tokens were sampled again already.
    """
    seeds, top_p = sampling.seeds[part], sampling.top_p[part]
    if (top_p >= 1).all():
        return chosen
    whole = reductions.column_sums(weights).sum(axis=-1, dtype=np.float64)
    left = np.arange(len(weights))
    for again in range(trial + 1, trial + MAX_TRIALS):
        value = weights[left, chosen[left]]
        # Nothing is likelier than the likeliest, whose weight is 1.
        left, value = left[(value < 1) & (top_p[left] < 1)], value[(value < 1) & (top_p[left] < 1)]
        outside = _likelier(weights, left, value) >= top_p[left] * whole[left]
        left = left[outside]
        if not len(left):
            return chosen
        for place, least in zip(left.tolist(), value[outside].tolist(), strict=True):
            np.multiply(weights[place], weights[place] > least, out=weights[place])
        smaller = weights[left]
        chosen[left] = reductions.locate(
            smaller, reductions.column_sums(smaller), uniform(seeds[left], positions[left], again)
        )
    chosen[left] = weights[left].argmax(axis=-1)  # rounding, or logits that are not numbers
    return chosen


def _likelier(weights: Floats, places: NDArray[np.int64], value: Floats) -> NDArray[np.float64]:
    """Returns the sum of the weights of these rows that are above a value."""
    if not len(places):
        return np.zeros(0)
    above = reductions.scratch("above", (len(places), weights.shape[1]))
    if len(places) == len(weights):
        np.subtract(weights, value[:, None], out=above)
    else:
        for row, place in enumerate(places.tolist()):
            np.subtract(weights[place], value[row], out=above[row])
    counts = np.array([np.count_nonzero(row > 0) for row in above])  # of floats themselves it is slow
    np.maximum(above, 0, out=above)
    total: NDArray[np.float64] = reductions.column_sums(above).sum(axis=-1, dtype=np.float64) + counts * value.astype(
        float
    )
    return total


def weights_of(logits: Floats, temperature: Floats, min_p: Floats) -> Floats:
    """Returns exp((logit - highest) / temperature), the likeliest 1, those under min_p 0, in memory of this thread."""
    weights = reductions.scratch("weights", logits.shape)
    np.subtract(logits, logits.max(axis=-1, keepdims=True), out=weights)
    np.multiply(weights, 1 / temperature, out=weights)
    np.exp(weights, out=weights)
    if min_p.any():
        weights[weights < min_p] = 0
    return weights
