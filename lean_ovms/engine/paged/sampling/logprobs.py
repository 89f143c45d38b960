"""Log probabilities from the model's logits before any processing (vLLM's raw_logprobs)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import reductions
from .reductions import Logits

UNKNOWN = -1
"""A placeholder for the token with the greatest logit of its row."""


@dataclass(slots=True)
class TokenLogprobs:
    """The log probabilities at the position of one token, from the unprocessed logits."""

    logprob: float
    """The token's log probability."""
    rank: int
    """The token's rank among all tokens; the likeliest has 1."""
    top: list[tuple[int, float]]
    """The likeliest tokens with their log probabilities."""


def log_sum_exp(logits: Logits) -> NDArray[np.float64]:
    """Returns log(sum(exp(logits))) of each row of logits [n, vocab] in double precision, [n]."""
    result = np.empty(len(logits), np.float64)
    for group in reductions.groups(*logits.shape):
        result[group] = reductions.log_sums(logits[group], logits[group].max(axis=-1))
    return result


def details(
    logits: Logits, tokens: NDArray[np.int64], most: int, places: list[int] | None = None
) -> list[TokenLogprobs]:
    """Returns the log probability and the rank of each row's token, and the likeliest tokens.

    A row is read from memory once; later passes find it in the CPU's cache.

    Args:
        logits: The logits [n, vocab].
        tokens: The tokens, one for each selected row; UNKNOWN ones are replaced by the likeliest token.
        most: How many of the likeliest tokens to return, likeliest first, and the lower id first among equals.
        places: The indices of the selected rows, ascending; None for all rows.
    """
    if places is None:
        places = list(range(len(logits)))
    vocab = logits.shape[1]
    found: list[list[TokenLogprobs]] = [[] for _ in places]

    def work(part: slice) -> None:
        for group in reductions.groups(part.stop - part.start, vocab):
            mine = slice(part.start + group.start, part.start + group.stop)
            found[mine.start] = _details(reductions.rows(logits, places[mine]), tokens[mine], most)

    reductions.in_parts(len(places), vocab, work)
    return [detail for group in found for detail in group]


def _details(logits: Logits, tokens: NDArray[np.int64], most: int) -> list[TokenLogprobs]:
    if len(logits) > 1:
        maxima, highest, chosen = None, logits.max(axis=-1), _chosen(logits, tokens)
        ranks = [int(np.count_nonzero(row > value)) + 1 for row, value in zip(logits, chosen, strict=True)]
    else:
        body, tail = reductions.table(logits)
        maxima = np.maximum.reduce(body, axis=1)
        highest = np.maximum(maxima.max(axis=-1, initial=-np.inf), tail.max(axis=-1, initial=-np.inf))
        chosen = _chosen(logits, tokens)
        ranks = [reductions.above(logits[0], maxima[0], chosen[0]) + 1]
    norm = reductions.log_sums(logits, highest)
    values = (chosen - norm).tolist()
    best = top(logits, norm, most, maxima) if most > 0 else [[] for _ in values]
    return [TokenLogprobs(*row) for row in zip(values, ranks, best, strict=True)]


def _chosen(logits: Logits, tokens: NDArray[np.int64]) -> Logits:
    """Returns the tokens' logits, after replacing UNKNOWN tokens in place by the likeliest."""
    unknown = np.flatnonzero(tokens == UNKNOWN)
    if len(unknown):
        tokens[unknown] = logits[unknown].argmax(axis=-1) if len(unknown) < len(logits) else logits.argmax(axis=-1)
    values: Logits = logits[np.arange(len(tokens)), tokens]
    return values


def named(row: NDArray[np.float32], ids: tuple[int, ...]) -> list[tuple[int, float]]:
    """Returns the given tokens of a logits row [vocab] with their log probabilities, in the given order."""
    values = row[list(ids)] - log_sum_exp(row[None])
    return list(zip(ids, values.tolist(), strict=True))


def top(
    logits: Logits, norm: NDArray[np.float64], most: int, maxima: Logits | None = None
) -> list[list[tuple[int, float]]]:
    """Returns the likeliest tokens of each row with their log probabilities, likeliest first.

    Args:
        logits: The logits [n, vocab].
        norm: The logarithm of the sum of exponentials of each row, which is subtracted from its logits, [n].
        most: The number of tokens to return.
        maxima: The greatest logit of each column of the rows' tables (reductions.py), [n, columns], if known.
    """
    place = np.arange(len(logits))[:, None]
    ids = reductions.largest(logits, min(most, logits.shape[1]), maxima)
    values = logits[place, ids]
    order = np.argsort(-values, axis=-1, kind="stable")
    ids, logprobs = ids[place, order], values[place, order] - norm[:, None]
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]
