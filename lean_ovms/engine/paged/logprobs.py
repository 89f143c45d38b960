"""Log probabilities from the model's own logits, before anything is done to them (vLLM's raw_logprobs). Pure numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .sequence import TokenLogprobs

Lines = NDArray[np.float32]


def log_sum_exp(lines: Lines) -> NDArray[np.float64]:
    """[n, vocab] to [n]: what the logits of a line are above its log probabilities.

    In double precision, or the difference of a likely token would be rounded to that of its logit.
    """
    highest = lines.max(axis=-1)
    total = np.exp(lines - highest[:, None]).sum(axis=-1)
    result: NDArray[np.float64] = highest.astype(np.float64) + np.log(total)
    return result


def details(lines: Lines, tokens: NDArray[np.int64], most: int) -> list[TokenLogprobs]:
    """For each line its token's log probability and rank, and the `most` likeliest tokens, likeliest first.

    Of equal ones the lower id comes first. Costs a pass over the lines, and for most > 0 a partition of them.
    """
    if not len(tokens):
        return []
    place = np.arange(len(tokens))
    norm = log_sum_exp(lines)
    chosen = lines[place, tokens]
    ranks = (lines > chosen[:, None]).sum(axis=-1) + 1
    values = (chosen - norm).tolist()
    best = top(lines, norm, most) if most > 0 else [[] for _ in values]
    return [TokenLogprobs(*row) for row in zip(values, ranks.tolist(), best, strict=True)]


def named(line: NDArray[np.float32], ids: tuple[int, ...]) -> list[tuple[int, float]]:
    """These tokens of a line [vocab] with their log probabilities, in this order."""
    values = line[list(ids)] - log_sum_exp(line[None])
    return list(zip(ids, values.tolist(), strict=True))


def top(lines: Lines, norm: NDArray[np.float64], most: int) -> list[list[tuple[int, float]]]:
    """The likeliest tokens of each line with their log probabilities."""
    vocab = lines.shape[1]
    most = min(most, vocab)
    place = np.arange(len(lines))[:, None]
    ids = np.argpartition(lines, vocab - most, axis=-1)[:, vocab - most :]
    ids.sort(axis=-1)
    values = lines[place, ids]
    order = np.argsort(-values, axis=-1, kind="stable")
    ids, logprobs = ids[place, order], values[place, order] - norm[:, None]
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]
