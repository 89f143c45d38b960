"""From logits to tokens for a whole batch. Pure numpy; greedy requests without other options share one argmax.

top_k, then min_p, then top_p, all after the temperature, as in openvino_genai (transformers differs in min_p's place).
Random numbers depend on the seed and the place in the text and on nothing else: equal logits give the same text
in every batch and after a preemption.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .logits import NoToken, edit
from .logprobs import details, named
from .params import NO_LOGPROBS
from .sequence import Sequence, TokenLogprobs

Lines = NDArray[np.float32]
Tokens = NDArray[np.int64]

CHUNK = 64
"""Weights that are summed before the one is looked for that a random number falls on."""
CACHED = 1 << 16
"""Weights that are drawn from at a time: what stays in the CPU's cache."""
MAX_TRIALS = 64


class Sampled(NamedTuple):
    """details: by place in the batch, for requests with logprobs. failed: why a place has no token."""

    tokens: Tokens
    details: dict[int, TokenLogprobs]
    failed: dict[int, Exception]


class SamplingBatch:
    """The sampling parameters of a batch, grouped by method; built once for as long as the same sequences decode."""

    def __init__(self, sequences: Seq[Sequence]) -> None:
        self.sequences = sequences
        asked = [sequence.params for sequence in sequences]
        self.edited = [i for i, s in enumerate(sequences) if s.matcher is not None or asked[i].edited]
        self.with_logprobs = [i for i, a in enumerate(asked) if a.logprobs != NO_LOGPROBS]
        self.most = max((asked[i].logprobs for i in self.with_logprobs), default=0)
        self.named = [n for n, i in enumerate(self.with_logprobs) if asked[i].logprob_token_ids]
        hot = [i for i, a in enumerate(asked) if a.temperature > 0]
        self.few = _Drawing([i for i in hot if asked[i].top_k], sequences)
        self.many = _Drawing([i for i in hot if not asked[i].top_k], sequences)
        self.searching = any(s.request.search is not None for s in sequences)
        self.none = not (self.edited or self.with_logprobs or hot)


class _Drawing:
    """Parameters of the sequences that are sampled, as arrays. places: in the batch."""

    def __init__(self, places: list[int], sequences: Seq[Sequence]) -> None:
        self.places = places
        self.sequences = [sequences[i] for i in places]
        asked = [s.params for s in self.sequences]
        self.temperature = np.array([a.temperature for a in asked], np.float32)[:, None]
        self.top_k = np.array([a.top_k for a in asked], np.int64)[:, None]
        self.top_p = np.array([a.top_p for a in asked], np.float64)
        self.min_p = np.array([a.min_p for a in asked], np.float32)[:, None]
        self.seeds = np.array([s.seed for s in self.sequences], np.uint64)

    def positions(self) -> NDArray[np.uint64]:
        """The places in their texts of the tokens to be drawn."""
        return np.array([s.generated for s in self.sequences], np.uint64)


_Draw = Callable[[Lines, _Drawing, slice, NDArray[np.uint64]], Tokens]


def sample(lines: Lines, batch: SamplingBatch) -> Sampled:
    """A token for each line [n, vocab], in the order of batch.sequences. The lines may be changed."""
    if batch.none:
        return Sampled(lines.argmax(axis=-1), {}, {})
    raw = lines[batch.with_logprobs] if batch.with_logprobs else lines[:0]  # a copy, before any edit
    failed: dict[int, Exception] = {}
    for place in batch.edited:
        try:
            edit(lines[place], batch.sequences[place])
        except NoToken as error:
            failed[place] = error
            lines[place] = 0
        except Exception as error:  # one request's fault must not end the step of all
            failed[place] = RuntimeError(f"the token could not be chosen: {error}")
            lines[place] = 0
    tokens = lines.argmax(axis=-1)
    for drawing, draw in ((batch.few, draw_few), (batch.many, draw_many)):
        if drawing.places:
            _draw(lines, drawing, draw, tokens)
    logprobs = details(raw, tokens[batch.with_logprobs], batch.most) if batch.with_logprobs else []
    for place, detail in zip(batch.with_logprobs, logprobs, strict=True):
        del detail.top[max(0, batch.sequences[place].params.logprobs) :]
    for number in batch.named:
        logprobs[number].top = named(raw[number], batch.sequences[batch.with_logprobs[number]].params.logprob_token_ids)
    return Sampled(tokens, dict(zip(batch.with_logprobs, logprobs, strict=True)), failed)


def _draw(lines: Lines, drawing: _Drawing, draw: _Draw, tokens: Tokens) -> None:
    """As many lines at a time as stay in the cache."""
    at_once = max(1, CACHED // lines.shape[1])
    positions, places = drawing.positions(), drawing.places
    for start in range(0, len(places), at_once):
        part = slice(start, start + at_once)
        mine = places[part]
        whole = mine[-1] - mine[0] == len(mine) - 1
        group = lines[mine[0] : mine[-1] + 1] if whole else lines[mine]
        tokens[mine] = draw(group, drawing, part, positions[part])


def uniform(seeds: NDArray[np.uint64], places: NDArray[np.uint64], trial: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for each seed and place: a counter through splitmix64's mixing function, twice."""
    mixed = _mix(seeds + np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed ^ (places * np.uint64(0xD1342543DE82EF95) + np.uint64(trial)))
    result: NDArray[np.float64] = (mixed >> np.uint64(11)) * 2.0**-53
    return result


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), mix64variant13."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def draw_few(lines: Lines, drawing: _Drawing, part: slice, positions: NDArray[np.uint64]) -> Tokens:
    """With a top-k: only so many are looked at, in descending order. Of equal ones at the border some are in."""
    top_k = np.minimum(drawing.top_k[part], lines.shape[1])
    most, line = int(top_k.max()), np.arange(len(lines))[:, None]
    ids = np.argpartition(lines, lines.shape[1] - most, axis=-1)[:, lines.shape[1] - most :]
    ids.sort(axis=-1)
    values = lines[line, ids]
    order = np.argsort(-values, axis=-1, kind="stable")
    ids, values = ids[line, order], values[line, order]
    weights = np.exp(((values - values[:, :1]) / drawing.temperature[part]).astype(np.float64))
    weights[np.arange(most) >= top_k] = 0
    weights[weights < drawing.min_p[part]] = 0
    sums = weights.cumsum(axis=-1)
    weights[sums - weights >= drawing.top_p[part, None] * sums[:, -1:]] = 0
    sums = weights.cumsum(axis=-1)
    target = uniform(drawing.seeds[part], positions, 0)[:, None] * sums[:, -1:]
    chosen: Tokens = ids[line[:, 0], np.minimum((sums <= target).sum(axis=-1), most - 1)]
    return chosen


def draw_many(lines: Lines, drawing: _Drawing, part: slice, positions: NDArray[np.uint64]) -> Tokens:
    """Without a top-k, and without sorting.

    A token is drawn from all. If it is outside of top_p (the likelier ones alone make it up) it and all that are not
    likelier go, and it is drawn again: what comes out is distributed as in the nucleus. Equal ones are in together.
    """
    weights = _weights(lines, drawing.temperature[part], drawing.min_p[part])
    seeds, top_p = drawing.seeds[part], drawing.top_p[part]
    chosen, left = np.empty(len(lines), np.int64), np.arange(len(lines))
    whole = weights.sum(axis=-1, dtype=np.float64)
    for trial in range(MAX_TRIALS):
        mine = weights if len(left) == len(lines) else weights[left]
        tokens = _locate(mine, uniform(seeds[left], positions[left], trial))
        value = mine[np.arange(len(left)), tokens]
        chosen[left] = np.minimum(tokens, lines.shape[1] - 1)
        if (top_p[left] >= 1).all() and value.all():
            break
        likelier = np.where(mine > value[:, None], mine, 0).sum(axis=-1, dtype=np.float64)
        outside = (value <= 0) | ((top_p[left] < 1) & (likelier >= top_p[left] * whole[left]))
        for place in np.flatnonzero(outside & (value > 0)):
            row = weights[left[place]]
            row[row <= value[place]] = 0
        left = left[outside]
        if not len(left):
            break
    else:
        chosen[left] = weights[left].argmax(axis=-1)  # rounding, or logits that are not numbers
    return chosen


def _weights(lines: Lines, temperature: Lines, min_p: Lines) -> Lines:
    """exp((logit - highest) / temperature), the likeliest 1, those under min_p 0; padded with 0 to whole chunks."""
    count, vocab = lines.shape
    weights = np.zeros((count, -(-vocab // CHUNK) * CHUNK), np.float32)
    mine = weights[:, :vocab]
    np.subtract(lines, lines.max(axis=-1, keepdims=True), out=mine)
    mine /= temperature
    np.exp(mine, out=mine)
    if min_p.any():
        mine[mine < min_p] = 0
    return weights


def _locate(weights: Lines, numbers: NDArray[np.float64]) -> Tokens:
    """The places in [n, chunks * CHUNK] weights on which numbers in [0, 1) fall: first the chunk, then in it."""
    line = np.arange(len(weights))
    chunks = weights.reshape(len(weights), -1, CHUNK)
    sums = chunks.sum(axis=-1)
    edges = sums.cumsum(axis=-1, dtype=np.float64)
    target = numbers * edges[:, -1]
    chunk = np.minimum((edges <= target[:, None]).sum(axis=-1), edges.shape[1] - 1)
    inner = chunks[line, chunk].cumsum(axis=-1, dtype=np.float64)
    rest = target - edges[line, chunk] + sums[line, chunk]
    inside = np.minimum((inner <= rest[:, None]).sum(axis=-1), CHUNK - 1)
    found: Tokens = chunk * CHUNK + inside
    return found
