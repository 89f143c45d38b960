"""Samples from a wide vocabulary by computing the exact weights of few tokens, and upper bounds for the others.

The result is exact. The maximum of each column (see reductions.py) takes one pass over a row. The weights are computed
exactly in the "near" columns, whose maximum is close to the greatest logit, and in the tail. A token of a "far" column
weighs at most as much as the maximum of its column. With these bounds, a token is drawn by rejection sampling: a near
token is accepted, and a far one with the probability of its weight divided by its bound; otherwise another token is
drawn. The sum of all weights, of which top_p is a fraction, is between the sum of the near weights and that including
the bounds. If this does not decide whether a token is in the nucleus, the whole row is computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import reductions
from .random_sampling import MAX_TRIALS, Numbers, Sampling, Tokens, in_nucleus, sample_full, uniform, weights_of
from .reductions import Floats

NEAR = float(np.exp(-8))
"""The weight, relative to the likeliest token, from which a column counts as near. A smaller value makes more columns
near; a greater one increases the bounds of the far columns."""
WIDTHS = (8, 32, 128)
"""Rows are grouped by their number of near columns: each group has the width of the next greater of these numbers."""


class _Near(NamedTuple):
    """The rows of a batch part that have a similar number of near columns."""

    place: NDArray[np.int64]
    """The indices of the rows in the part, [n]."""
    columns: NDArray[np.int64]
    """The near columns of each row, [n, most]."""
    weights: Floats
    """The weights of tokens in the near columns and the tail, [n, COLUMN * most + tail]; 0 in padding."""
    highest: Floats
    """The greatest logit of each row, [n]."""
    bounds: Floats
    """The upper bounds of the weights in each column, 0 for near ones, for all rows of the part, [rows, columns]."""
    far: NDArray[np.float64]
    """The upper bound of the total weight of each row's far tokens, [n]: COLUMN times the sum of the row's bounds."""

    def ids(self, logits: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the token ids for indices into the weights, one for each row."""
        most, columns = max(1, self.columns.shape[1]), self.bounds.shape[1]
        row, column = np.divmod(at, most)
        behind = at >= reductions.COLUMN * self.columns.shape[1]
        inside = row * columns + self.columns[logits, column] if self.columns.shape[1] else at
        tail: NDArray[np.int64] = reductions.COLUMN * (columns - self.columns.shape[1]) + at
        return np.where(behind, tail, inside)


class _Row(NamedTuple):
    """The result of one pass over a row."""

    place: int
    """The index of the row in the part of the batch."""
    columns: NDArray[np.int64]
    """The near columns, [n]."""
    values: Floats
    """The logits in the near columns, [COLUMN, n]."""
    highest: np.float32
    """The greatest logit."""
    far: float
    """The upper bound of the total weight of the far tokens: COLUMN times the sum of the bounds."""


def sample(logits: Floats, sampling: Sampling, part: slice, positions: Numbers) -> Tokens:
    """Samples tokens with the same distribution as sample_full, but not the same tokens for a seed.

    Args:
        logits: The logits [n, vocab].
        sampling: The parameters of all sequences.
        part: The sequences to which the logits belong.
        positions: The position of the token in each sequence's completion, [n].
    """
    chosen = np.empty(len(logits), np.int64)
    body, tail = reductions.table(logits)
    bounds = np.empty((len(logits), body.shape[2]), np.float32)
    by_width: dict[int, list[_Row]] = {width: [] for width in WIDTHS}
    # Row by row: what follows the pass over a row finds it in the cache.
    for place in range(len(logits)):
        row = _look(body[place], tail[place], sampling, part.start + place, place, bounds[place])
        if row is None:
            one = slice(part.start + place, part.start + place + 1)
            chosen[place] = sample_full(logits[place : place + 1], sampling, one, positions[place : place + 1])[0]
        else:
            by_width[next(width for width in WIDTHS if len(row.columns) <= width)].append(row)
    for found in by_width.values():
        if found:
            _choose(logits, _group(logits, found, sampling, part, bounds), sampling, part, positions, chosen)
    return chosen


def _look(body: Floats, tail: Floats, sampling: Sampling, at: int, place: int, bounds: Floats) -> _Row | None:
    """Returns the near columns of a row; None if there are too many, or the logits are not finite.

    Args:
        body: The row's table, [COLUMN, columns].
        tail: The logits after the table.
        sampling: The parameters of all sequences.
        at: The index of the row's sequence among them.
        place: The index of the row in the part of the batch.
        bounds: The array that receives the bounds [columns] of the weights in each column, 0 for near ones.
    """
    temperature, min_p = sampling.temperature[at], sampling.min_p[at]
    np.maximum.reduce(body, out=bounds)
    highest = np.maximum.reduce(bounds)
    if len(tail):
        highest = np.maximum(highest, np.maximum.reduce(tail))
    if not np.isfinite(highest):
        return None
    bounds -= highest
    bounds /= temperature
    np.exp(bounds, out=bounds)
    (columns,) = (bounds >= np.maximum(NEAR, min_p)).nonzero()
    if len(columns) > WIDTHS[-1]:
        return None
    bounds[columns] = 0
    if min_p > 0:
        bounds[bounds < min_p] = 0
    far = reductions.COLUMN * float(np.add.reduce(bounds, dtype=np.float64))
    return _Row(place, columns, body.take(columns, axis=1, mode="clip"), highest, far)


def _group(logits: Floats, found: list[_Row], sampling: Sampling, part: slice, bounds: Floats) -> _Near:
    """Groups rows with similar numbers of near columns.

    Args:
        logits: The logits of the part of the batch, [rows, vocab].
        found: The results of one pass over each row.
        sampling: The parameters of all sequences.
        part: The sequences to which the logits belong.
        bounds: The upper bounds of the weights in each column, [rows, columns].
    """
    place = np.array([row.place for row in found], np.int64)
    temperature, min_p = sampling.temperature[part][place], sampling.min_p[part][place]
    highest = np.array([row.highest for row in found], np.float32)
    far = np.array([row.far for row in found], np.float64)
    most, tail = max(len(row.columns) for row in found), reductions.table(logits)[1]
    columns = np.zeros((len(found), most), np.int64)
    weights = np.full((len(found), reductions.COLUMN * most + tail.shape[1]), -np.inf, np.float32)
    body = weights[:, : reductions.COLUMN * most].reshape(len(found), reductions.COLUMN, most)
    for n, row in enumerate(found):
        columns[n, : len(row.columns)] = row.columns
        body[n, :, : len(row.columns)] = row.values
    weights[:, reductions.COLUMN * most :] = tail[place]
    weights -= highest[:, None]
    weights /= temperature
    np.exp(weights, out=weights)
    if min_p.any():
        weights[weights < min_p] = 0
    return _Near(place, columns, weights, highest, bounds, far)


def _choose(logits: Floats, group: _Near, sampling: Sampling, part: slice, positions: Numbers, chosen: Tokens) -> None:
    """Draws a token for each row of a group, and writes it to its place in `chosen`, the tokens of the whole part."""
    place, weights = group.place, group.weights
    seeds, top_p = sampling.seeds[part][place], sampling.top_p[part][place]
    edges = weights.cumsum(axis=1, dtype=np.float64)
    least, far = edges[:, -1].copy(), group.far.copy()
    most = least + far  # the sum of all weights is between the two
    left = np.arange(len(place))  # those without a token
    for trial in range(MAX_TRIALS):
        low = edges[left, -1]
        target = uniform(seeds[left], positions[place[left]], trial) * (low + far[left])
        below = np.minimum(target, np.nextafter(low, 0))
        at = np.array([edges[n].searchsorted(x, "right") for n, x in zip(left.tolist(), below, strict=True)], np.int64)
        chosen[place[left]], value = group.ids(left, at), weights[left, at]
        value[target >= low] = 0  # a far token, which weighs at most NEAR
        limited = (top_p[left] < 1) & (value < 1)
        floor = np.maximum(value, np.float32(NEAR))
        outside = _outside(logits, group, sampling, part, (least, most), (left, floor, limited))
        cut = left[outside]
        weights[cut] = np.where(weights[cut] > floor[outside, None], weights[cut], 0)
        edges[cut], far[cut] = weights[cut].cumsum(axis=1, dtype=np.float64), 0
        again, unsure = outside.copy(), limited & ~outside & (value <= NEAR)
        for row in np.flatnonzero((target >= low) & ~outside).tolist():
            token = _far_token(logits, group, int(left[row]), sampling, part, float(target[row] - low[row]))
            again[row], unsure[row] = token < 0, unsure[row] and token >= 0
            chosen[place[left[row]]] = max(0, token)
        for row in place[left[unsure]].tolist():
            one = slice(part.start + row, part.start + row + 1)
            whole = weights_of(logits[row : row + 1], sampling.temperature[one], sampling.min_p[one])
            (chosen[row],) = in_nucleus(whole, chosen[row : row + 1], sampling, one, positions[row : row + 1], trial)
        left = left[again]
        if not len(left):
            return
    for row in place[left].tolist():
        one = slice(part.start + row, part.start + row + 1)
        chosen[row] = sample_full(logits[row : row + 1], sampling, one, positions[row : row + 1], MAX_TRIALS)[0]


def _outside(
    logits: Floats,
    group: _Near,
    sampling: Sampling,
    part: slice,
    sums: tuple[NDArray[np.float64], NDArray[np.float64]],
    candidates: tuple[NDArray[np.int64], Floats, NDArray[np.bool_]],
) -> NDArray[np.bool_]:
    """Returns which candidates are outside of top_p, because the tokens with greater weights alone reach it.

    Args:
        logits: The logits of the part of the batch, [rows, vocab].
        group: The rows with a similar number of near columns.
        sampling: The parameters of all sequences.
        part: The sequences to which the logits belong.
        sums: The lower and the upper bound of the total weight of each row in the group. If the exact total is needed,
            it replaces both.
        candidates: The rows of the group that have a candidate, the candidates' weights (at least NEAR), and whether
            top_p applies.
    """
    (least, most), (left, floor, limited) = sums, candidates
    if not limited.any():
        return limited
    top_p = sampling.top_p[part][group.place[left]]
    weights = group.weights[left]
    above = np.where(weights > floor[:, None], weights, 0).sum(axis=1, dtype=np.float64)
    open_ = limited & (above >= top_p * least[left]) & (above < top_p * most[left])
    for row in left[open_].tolist():
        place = int(group.place[row])
        one = slice(part.start + place, part.start + place + 1)
        if sampling.min_p[one].any():
            whole = weights_of(logits[place : place + 1], sampling.temperature[one], sampling.min_p[one])
            least[row] = most[row] = reductions.column_sums(whole).sum(dtype=np.float64)
        else:
            factor = float(1 / sampling.temperature[one.start, 0])
            logs = reductions.log_sums(logits[place : place + 1], group.highest[row : row + 1], factor)
            least[row] = most[row] = np.exp(logs[0] - factor * float(group.highest[row]))
    outside: NDArray[np.bool_] = limited & (above >= top_p * most[left])
    return outside


def _far_token(logits: Floats, group: _Near, row: int, sampling: Sampling, part: slice, target: float) -> int:
    """Returns the far token at a number below `far`, or -1 if the token is rejected.

    Each far token owns an equal part of its column's bound, in which it is accepted up to its own weight.

    Args:
        logits: The logits of the part of the batch, [rows, vocab].
        group: The rows with a similar number of near columns.
        row: The index of the row in the group.
        sampling: The parameters of all sequences.
        part: The sequences to which the logits belong.
        target: The number.
    """
    place = int(group.place[row])
    bounds = group.bounds[place]
    edges = bounds.cumsum(dtype=np.float64)
    column = min(int((edges <= target / reductions.COLUMN).sum()), len(bounds) - 1)
    if not bounds[column]:
        return -1
    into = (target / reductions.COLUMN - edges[column] + bounds[column]) / bounds[column] * reductions.COLUMN
    inside = min(int(into), reductions.COLUMN - 1)
    token = column + len(bounds) * inside
    temperature, min_p = float(sampling.temperature[part][place, 0]), float(sampling.min_p[part][place, 0])
    weight = float(np.exp((logits[place, token] - group.highest[row]) / temperature))
    return token if weight >= min_p and (into - inside) * bounds[column] < weight else -1
