"""Log probabilities from the model's own logits, before anything is done to them (vLLM's raw_logprobs). Pure numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import wide
from .sequence import TokenLogprobs

Lines = NDArray[np.float32]


def log_sum_exp(lines: Lines) -> NDArray[np.float64]:
    """[n, vocab] to [n]: what the logits of a line are above its log probabilities.

    In double precision, or the difference of a likely token would be rounded to that of its logit.
    """
    highest = lines.max(axis=-1)
    total = np.empty(len(lines), np.float32)
    for group in wide.groups(*lines.shape):
        shifted = wide.scratch("weights", lines[group].shape)
        np.subtract(lines[group], highest[group, None], out=shifted)
        wide.column_sums(np.exp(shifted, out=shifted)).sum(axis=-1, out=total[group])
    result: NDArray[np.float64] = highest.astype(np.float64) + np.log(total)
    return result


def details(lines: Lines, tokens: NDArray[np.int64], most: int) -> list[TokenLogprobs]:
    """For each line its token's log probability and rank, and the `most` likeliest tokens, likeliest first.

    Of equal ones the lower id comes first. Costs a pass over the lines, and for most > 0 a partition of them.
    """
    count, vocab = lines.shape
    found: list[list[TokenLogprobs]] = [[] for _ in range(count)]

    def work(part: slice) -> None:
        for group in wide.groups(part.stop - part.start, vocab):
            mine = slice(part.start + group.start, part.start + group.stop)
            found[mine.start] = _details(lines[mine], tokens[mine], most)

    wide.in_parts(count, vocab, work)
    return [detail for group in found for detail in group]


def _details(lines: Lines, tokens: NDArray[np.int64], most: int) -> list[TokenLogprobs]:
    norm = log_sum_exp(lines)
    chosen = lines[np.arange(len(tokens)), tokens]
    ranks = [int(np.count_nonzero(line > value)) + 1 for line, value in zip(lines, chosen, strict=True)]
    values = (chosen - norm).tolist()
    best = top(lines, norm, most) if most > 0 else [[] for _ in values]
    return [TokenLogprobs(*row) for row in zip(values, ranks, best, strict=True)]


def named(line: NDArray[np.float32], ids: tuple[int, ...]) -> list[tuple[int, float]]:
    """These tokens of a line [vocab] with their log probabilities, in this order."""
    values = line[list(ids)] - log_sum_exp(line[None])
    return list(zip(ids, values.tolist(), strict=True))


def top(lines: Lines, norm: NDArray[np.float64], most: int) -> list[list[tuple[int, float]]]:
    """The likeliest tokens of each line with their log probabilities."""
    place = np.arange(len(lines))[:, None]
    ids = wide.largest(lines, min(most, lines.shape[1]))
    values = lines[place, ids]
    order = np.argsort(-values, axis=-1, kind="stable")
    ids, logprobs = ids[place, order], values[place, order] - norm[:, None]
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]
