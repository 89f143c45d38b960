"""Log probabilities from the model's own logits, before anything is done to them (vLLM's raw_logprobs). Pure numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .sequence import TokenLogprobs

Lines = NDArray[np.float32]
AT_ONCE = 32
"""Lines of a prompt at a time: a vocabulary of 150,000 takes 20 MB for each copy of them."""


class Norms:
    """What makes log probabilities of logits [n, vocab]: subtracted in two parts, or small ones would lose digits."""

    def __init__(self, lines: Lines) -> None:
        self._highest = lines.max(axis=-1)[:, None]
        self._log_sum = np.log(np.exp(lines - self._highest).sum(axis=-1))[:, None]

    def apply(self, values: Lines) -> Lines:
        """Logits [n, k] of the same n lines to log probabilities."""
        result: Lines = (values - self._highest) - self._log_sum
        return result


def details(lines: Lines, tokens: NDArray[np.int64], most: int) -> list[TokenLogprobs]:
    """For each line its token's log probability and rank, and the `most` likeliest tokens, likeliest first.

    Of equal ones the lower id comes first. Costs a pass over the lines, and for most > 0 a partition of them.
    """
    if len(tokens) > AT_ONCE:
        parts = [slice(start, start + AT_ONCE) for start in range(0, len(tokens), AT_ONCE)]
        return [detail for part in parts for detail in details(lines[part], tokens[part], most)]
    if not len(tokens):
        return []
    place = np.arange(len(tokens))
    norms = Norms(lines)
    chosen = lines[place, tokens][:, None]
    ranks = (lines > chosen).sum(axis=-1) + 1
    values = norms.apply(chosen)[:, 0].tolist()
    best = top(lines, norms, most) if most > 0 else [[] for _ in values]
    return [TokenLogprobs(*row) for row in zip(values, ranks.tolist(), best, strict=True)]


def named(line: NDArray[np.float32], ids: tuple[int, ...]) -> list[tuple[int, float]]:
    """These tokens of a line [vocab] with their log probabilities, in this order."""
    lines = line[None]
    values = Norms(lines).apply(lines[:, list(ids)])[0]
    return list(zip(ids, values.tolist(), strict=True))


def top(lines: Lines, norms: Norms, most: int) -> list[list[tuple[int, float]]]:
    """The likeliest tokens of each line with their log probabilities."""
    vocab = lines.shape[1]
    most = min(most, vocab)
    place = np.arange(len(lines))[:, None]
    ids = np.argpartition(lines, vocab - most, axis=-1)[:, vocab - most :]
    ids.sort(axis=-1)
    values = lines[place, ids]
    order = np.argsort(-values, axis=-1, kind="stable")
    ids, values = ids[place, order], norms.apply(values[place, order])
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
