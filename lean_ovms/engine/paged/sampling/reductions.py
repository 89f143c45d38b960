"""Reductions of logits over a wide vocabulary that read them only once, in several threads.

A row [vocab] is viewed as a table with COLUMN rows. A reduction over these gives one number for each column, that is
for every COLUMN tokens, at the speed of memory; over runs of neighbouring tokens numpy takes six times as long. The
tokens after the table, fewer than COLUMN, are called the tail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....util.resources import cores

Floats = NDArray[np.float32]
Logits = NDArray[np.float32]
"""Logits of the shape [rows, vocab]."""

COLUMN = 32
"""The number of tokens in a column; their ids are equal modulo the width of the table."""
CACHED = 1 << 16
"""The number of logits that are processed together, so that they stay in the CPU's cache."""
WIDE = 1 << 15
"""The vocabulary size from which rows are processed one by one, since a row then fills the CPU's cache."""
SHARED = 1 << 20
"""The number of logits from which a batch is shared by several threads; numpy releases the GIL."""

LOWEST, HIGHEST = -40, 70
"""The range of a row's greatest logit in which exp needs no shift: a million times exp(70) still fits into float32, and
exp(-40 - 40) is still represented with full precision."""


_local = threading.local()
_pool: ThreadPoolExecutor | None = None


@cache
def _most_threads() -> int:
    return min(4, cores())


def in_parts(count: int, vocab: int, work: Callable[[slice], None]) -> None:
    """Calls `work` with the slices of a batch of logits rows, in several threads if the batch is large.

    Args:
        count: The number of rows.
        vocab: The size of the vocabulary.
        work: The function, called with each slice.
    """
    threads = min(_most_threads(), count) if count * vocab >= SHARED else 1
    if threads == 1:
        work(slice(0, count))
        return
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_most_threads() - 1, "sampler")
    edges = [count * i // threads for i in range(threads + 1)]
    parts = [slice(a, b) for a, b in pairwise(edges)]
    rest = [_pool.submit(work, part) for part in parts[1:]]
    try:
        work(parts[0])
    finally:
        for future in rest:
            future.exception()  # all threads have ended before the logits may be changed
    for future in rest:
        future.result()


def groups(count: int, vocab: int) -> list[slice]:
    """Divides a batch of logits rows into slices that fit into the CPU's cache."""
    at_once = max(1, CACHED // vocab)
    return [slice(start, min(count, start + at_once)) for start in range(0, count, at_once)]


def scratch(name: str, shape: tuple[int, ...]) -> Floats:
    """Returns reusable memory of this thread for intermediate values; allocating it costs more than computing."""
    size = int(np.prod(shape))
    buffer: Floats | None = getattr(_local, name, None)
    if buffer is None or len(buffer) < size:
        buffer = np.empty(max(size, CACHED), np.float32)
        setattr(_local, name, buffer)
    return buffer[:size].reshape(shape)


def rows(logits: Floats, places: Sequence[int]) -> Floats:
    """Returns the rows at these ascending indices, as a view if the rows are contiguous."""
    neighbours = places[-1] - places[0] == len(places) - 1
    return logits[places[0] : places[-1] + 1] if neighbours else logits[list(places)]


def table(logits: Floats) -> tuple[Floats, Floats]:
    """Returns views of logits [n, vocab]: the table [n, COLUMN, columns] and the tail [n, rest]."""
    count, vocab = logits.shape
    columns = vocab // COLUMN
    return logits[:, : COLUMN * columns].reshape(count, COLUMN, columns), logits[:, COLUMN * columns :]


def column_sums(weights: Floats) -> Floats:
    """Returns the sums of the columns of [n, vocab] as [n, columns + 1], where the last is the sum of the tail."""
    body, tail = table(weights)
    sums = np.empty((len(weights), body.shape[2] + 1), np.float32)
    body.sum(axis=1, out=sums[:, :-1])
    tail.sum(axis=1, out=sums[:, -1])
    return sums


def finite(logits: Floats) -> NDArray[np.bool_]:
    """Returns which rows [n] can be sampled from: those whose greatest logit is finite."""
    rows: NDArray[np.bool_] = np.isfinite(logits.max(axis=-1))
    return rows


def log_sums(logits: Floats, highest: Floats, factor: float = 1.0) -> NDArray[np.float64]:
    """Returns log(sum(exp(factor * logit))) of each row, [n].

    Args:
        logits: The logits [n, vocab], few enough rows to fit into the CPU's cache.
        highest: The greatest logit of each row, [n].
        factor: The factor of all logits.
    """
    exps = scratch("weights", logits.shape)
    highest = highest * np.float32(factor)
    scaled = logits if factor == 1 else np.multiply(logits, np.float32(factor), out=exps)
    # As they are, where none of what counts leaves float32's range: one pass less, and no rounding of the difference.
    plain = bool(((highest > LOWEST) & (highest < HIGHEST)).all())
    if not plain:
        scaled = np.subtract(scaled, highest[:, None], out=exps)
    sums = column_sums(np.exp(scaled, out=exps)).sum(axis=-1)
    logs: NDArray[np.float64] = np.log(sums.astype(np.float64))
    # Never below the greatest, or rounding would make a probability larger than 1.
    return np.maximum(logs, highest) if plain else logs + highest


def locate(weights: Floats, sums: Floats, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the token of each row at which the cumulative weight reaches a number, by its column.

    Args:
        weights: The weights [n, vocab] of the tokens.
        sums: The sums of the columns, [n, columns + 1], where the last is that of the tail.
        numbers: The numbers [n] in [0, 1), as fractions of the sum of a row.
    """
    rows, columns, last = np.arange(len(weights)), sums.shape[1] - 1, weights.shape[1] - 1
    edges = sums.cumsum(axis=1, dtype=np.float64)
    target = np.minimum(numbers * edges[:, -1], np.nextafter(edges[:, -1], 0))
    column = np.minimum((edges <= target[:, None]).sum(axis=1), columns)
    place = np.arange(COLUMN)
    ids = np.where(column[:, None] == columns, COLUMN * columns + place, column[:, None] + columns * place)
    inner = np.where(ids <= last, weights[rows[:, None], np.minimum(ids, last)], np.float32(0))
    inside = inner.cumsum(axis=1, dtype=np.float64)
    rest = target - edges[rows, column] + sums[rows, column]
    # The sums of a column in single precision may exceed those in double: then it is its last token that counts.
    final = COLUMN - 1 - (inner[:, ::-1] > 0).argmax(axis=1)
    chosen: NDArray[np.int64] = np.minimum(ids[rows, np.minimum((inside <= rest[:, None]).sum(axis=1), final)], last)
    return chosen


def largest(logits: Floats, most: int, maxima: Floats | None = None) -> NDArray[np.int64]:
    """Returns the ids of the tokens with the greatest logits of each row, [n, most], in ascending order of the ids.

    If several logits equal the smallest one returned, some of them may be left out. Only the `most` columns with the
    greatest maxima, and the tail, are searched, since the others cannot contain a greater logit.

    Args:
        logits: The logits [n, vocab].
        most: The number of tokens to return.
        maxima: The greatest logit of each column of the rows' tables, [n, columns], if known.
    """
    count, vocab = logits.shape
    columns = vocab // COLUMN
    if vocab < CACHED // 8 or 8 * most > columns:
        ids = np.argpartition(logits, vocab - most, axis=-1)[:, vocab - most :]
    else:
        body, tail = table(logits)
        steps = columns * np.arange(COLUMN)[:, None]
        behind = np.arange(COLUMN * columns, vocab)
        ids = np.empty((count, most), np.int64)
        for row in range(count):  # one index over all rows takes twice as long
            highest = np.maximum.reduce(body[row]) if maxima is None else maxima[row]
            chosen = highest.argpartition(columns - most)[columns - most :]
            near = np.concatenate([(chosen + steps).reshape(-1), behind])
            values = np.concatenate([body[row].take(chosen, axis=1, mode="clip").reshape(-1), tail[row]])
            ids[row] = near[values.argpartition(len(values) - most)[len(values) - most :]]
    ids.sort(axis=-1)
    return ids


def above(row: NDArray[np.float32], maxima: Floats, value: np.float32) -> int:
    """Returns the number of logits in a row that are greater than a value.

    Args:
        row: The logits [vocab].
        maxima: The greatest logit of each column of the row's table. Only columns with a greater one are read, unless
            they are many.
        value: The value.
    """
    columns = np.flatnonzero(maxima > value)
    (body,), (tail,) = table(row[None])
    if len(columns) > len(maxima) // COLUMN:
        return int(np.count_nonzero(row > value))
    inside = body.take(columns, axis=1, mode="clip") > value
    return int(np.count_nonzero(inside)) + int(np.count_nonzero(tail > value))
