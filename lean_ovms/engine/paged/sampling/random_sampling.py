"""Samples random tokens from logits, by temperature, top_k, min_p and top_p.

The order is temperature, top_k, min_p, top_p, as in openvino_genai (transformers applies min_p elsewhere). Random
numbers depend only on the seed and the position in the text: equal logits give the same text in every batch and after a
preemption.
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
"""The most times that a token is drawn in one way; after that it is chosen in another."""


class Sampling:
    """The parameters of the sequences that are sampled at random, as arrays."""

    def __init__(self, places: list[int], sequences: Seq[Sequence]) -> None:
        """Collects the parameters of the sequences at these indices of the batch, which are sampled at random."""
        self.places = places
        self.sequences = [sequences[i] for i in places]
        params = [s.params for s in self.sequences]
        self.temperature = np.array([one.temperature for one in params], np.float32)[:, None]
        self.top_k = np.array([one.top_k for one in params], np.int64)[:, None]
        self.top_p = np.array([one.top_p for one in params], np.float64)
        self.min_p = np.array([one.min_p for one in params], np.float32)[:, None]
        self.seeds = np.array([s.seed for s in self.sequences], np.uint64)

    def positions(self) -> Numbers:
        """Returns the indices, in their completions, of the tokens to be sampled."""
        return np.array([s.generated for s in self.sequences], np.uint64)


def uniform(seeds: Numbers, places: Numbers, trial: int) -> NDArray[np.float64]:
    """Returns a number in [0, 1) for each seed and position, by mixing a counter twice as splitmix64 does.

    Args:
        seeds: The seeds of the sequences.
        places: The positions of the tokens in their completions.
        trial: The number of random numbers used before at these positions.
    """
    mixed = _mix(seeds + np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed ^ (places * np.uint64(0xD1342543DE82EF95) + np.uint64(trial)))
    result: NDArray[np.float64] = (mixed >> np.uint64(11)) * 2.0**-53
    return result


def _mix(z: Numbers) -> Numbers:
    """Mixes bits with mix64variant13 of Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Numbers = z ^ (z >> np.uint64(31))
    return mixed


def sample_top_k(logits: Floats, sampling: Sampling, part: slice, positions: Numbers) -> Tokens:
    """Samples tokens with top_k by partially sorting the logits; of those equal to the k-th, only some are included.

    Args:
        logits: The logits [n, vocab].
        sampling: The parameters of all sequences.
        part: The sequences to which the logits belong.
        positions: The position of the token in each sequence's completion, [n].
    """
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
    """Samples tokens without top_k or sorting: from all tokens, and again if a token is outside of top_p.

    Args:
        logits: The logits [n, vocab].
        sampling: The parameters of all sequences.
        part: The sequences to which the logits belong.
        positions: The position of the token in each sequence's completion, [n].
        trial: The number of random numbers used before at these positions.
    """
    weights = weights_of(logits, sampling.temperature[part], sampling.min_p[part])
    chosen = reductions.locate(
        weights, reductions.column_sums(weights), uniform(sampling.seeds[part], positions, trial)
    )
    return in_nucleus(weights, chosen, sampling, part, positions, trial)


def in_nucleus(
    weights: Floats, chosen: Tokens, sampling: Sampling, part: slice, positions: Numbers, trial: int = 0
) -> Tokens:
    """Returns the tokens, after replacing those that are outside of top_p by others that were sampled again.

    A token is outside if the likelier ones alone reach top_p. In that case it and all tokens that are not likelier are
    excluded, and another one is sampled. The result has the same distribution as samples from the nucleus. Equally
    likely tokens are either all inside or all outside.

    Args:
        weights: The weights [n, vocab] by which the tokens were sampled, with a maximum of 1 in each row; changed in
            place.
        chosen: The tokens [n]; changed in place.
        sampling: The parameters of all sequences.
        part: The sequences to which the weights belong.
        positions: The position of the token in each sequence's completion, [n].
        trial: The number of times that tokens have been sampled again before.
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
    """Returns the sum of the weights above a value, for each of these rows.

    Args:
        weights: The weights [n, vocab].
        places: The indices of the rows.
        value: The value for each of the rows.
    """
    if not len(places):
        return np.zeros(0)
    above = reductions.scratch("above", (len(places), weights.shape[1]))
    if len(places) == len(weights):
        np.subtract(weights, value[:, None], out=above)
    else:
        for row, place in enumerate(places.tolist()):
            np.subtract(weights[place], value[row], out=above[row])
    counts = np.array([np.count_nonzero(row > 0) for row in above])  # counting floats directly is slow
    np.maximum(above, 0, out=above)
    total: NDArray[np.float64] = reductions.column_sums(above).sum(axis=-1, dtype=np.float64) + counts * value.astype(
        float
    )
    return total


def weights_of(logits: Floats, temperature: Floats, min_p: Floats) -> Floats:
    """Returns exp((logit - highest) / temperature) of each token, or 0 if that is below min_p.

    The result is in memory that this thread reuses.

    Args:
        logits: The logits [n, vocab].
        temperature: The temperature of each row.
        min_p: The least weight of a token, for each row.
    """
    weights = reductions.scratch("weights", logits.shape)
    np.subtract(logits, logits.max(axis=-1, keepdims=True), out=weights)
    np.multiply(weights, 1 / temperature, out=weights)
    np.exp(weights, out=weights)
    if min_p.any():
        weights[weights < min_p] = 0
    return weights
