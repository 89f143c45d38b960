"""Samples tokens from the logits of a whole batch. Greedy requests without other options share one argmax."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..sequence import MOST_SORTED, NoToken, Sequence
from . import reductions
from .reductions import Logits

if TYPE_CHECKING:
    from .logprobs import TokenLogprobs
    from .random_sampling import Numbers, Sampling

Tokens = NDArray[np.int64]


_Draw = Callable[[Logits, "Sampling", slice, "Numbers"], Tokens]


class Sampled(NamedTuple):
    """The result of sampling a batch."""

    tokens: Tokens
    """A token for each row of the batch."""
    details: dict[int, TokenLogprobs]
    """The log probabilities that requests ask for, by row."""
    failed: dict[int, Exception]
    """The errors of rows without a token, by row."""


class SamplingBatch:
    """The sampling parameters of a batch, grouped by method. It is reused as long as the same sequences decode."""

    def __init__(self, sequences: Seq[Sequence], *, details: bool = True) -> None:
        """Groups the sequences of a batch, in the order of the rows of logits, by sampling method.

        Log probabilities are computed for the requests that ask for them, unless `details` is False.
        """
        self.sequences = sequences
        params = [sequence.params for sequence in sequences]
        self.edited = [i for i, s in enumerate(sequences) if s.edited]
        self.with_logprobs = [i for i, a in enumerate(params) if details and a.logprobs]
        self.top_logprobs = max((params[i].top_logprobs for i in self.with_logprobs), default=0)
        self.with_token_ids = [n for n, i in enumerate(self.with_logprobs) if params[i].logprob_token_ids]
        hot = [i for i, a in enumerate(params) if a.temperature > 0]
        self.greedy = [i for i, a in enumerate(params) if not a.temperature > 0]
        # The pass over the logits that computes their log probabilities also finds their tokens.
        alike = set(self.with_logprobs).intersection(self.greedy).difference(self.edited)
        self.greedy_with_logprobs = sorted(alike)
        self.other_greedy = [i for i in self.greedy if i not in alike]
        self.with_top_k: Sampling | None = None
        self.without_top_k: Sampling | None = None
        if hot:
            from .random_sampling import Sampling  # late: greedy requests need none of it

            self.with_top_k = Sampling([i for i in hot if 0 < params[i].top_k <= MOST_SORTED], sequences)
            self.without_top_k = Sampling([i for i in hot if not 0 < params[i].top_k <= MOST_SORTED], sequences)
        self.searching = any(s.search is not None for s in sequences)
        self.repeating = [s for s in sequences if s.repetition is not None]
        self.only_greedy = not (self.edited or self.with_logprobs or hot)


def sample(logits: Logits, batch: SamplingBatch) -> Sampled:
    """Samples a token for each row of logits [n, vocab] of batch.sequences. It may change the logits."""
    if batch.only_greedy:
        return Sampled(_greatest(logits, batch.greedy), {}, {})
    before = _Before(logits, batch)
    failed = _edit(logits, batch) if batch.edited else {}
    together = logits.shape[1] >= reductions.WIDE
    tokens = _greatest(logits, batch.other_greedy if together else batch.greedy)
    if batch.with_top_k is not None and batch.without_top_k is not None:
        _sample_random(logits, batch.with_top_k, batch.without_top_k, tokens)
    if not batch.with_logprobs:
        return Sampled(tokens, {}, failed)
    before.restore(logits)
    return Sampled(tokens, _details(logits, batch, tokens, late=together), failed)


def _edit(logits: Logits, batch: SamplingBatch) -> dict[int, Exception]:
    """Applies the requests' parameters to their rows; returns the errors of rows without a token, set to 0."""
    from .logits_processors import edit  # late: most requests have no such parameters

    failed: dict[int, Exception] = {}
    for place in batch.edited:
        try:
            edit(logits[place], batch.sequences[place])
        except NoToken as error:
            failed[place] = error
            logits[place] = 0
        except Exception as error:  # one request's fault must not end the step of all
            failed[place] = RuntimeError(f"the token could not be chosen: {error}")
            logits[place] = 0
    return failed


def _details(logits: Logits, batch: SamplingBatch, tokens: Tokens, *, late: bool) -> dict[int, TokenLogprobs]:
    """Returns the log probabilities that requests ask for, by row.

    Args:
        logits: The model's unprocessed logits, [rows, vocab].
        batch: The sampling parameters.
        tokens: The tokens of all rows; if `late` is set, those of `batch.greedy_with_logprobs` are written here.
        late: Whether the tokens of `batch.greedy_with_logprobs` are chosen here.
    """
    from .logprobs import UNKNOWN, details, named  # late: few requests ask for them

    if late:
        tokens[batch.greedy_with_logprobs] = UNKNOWN
    theirs = tokens[batch.with_logprobs]
    found = details(logits, theirs, batch.top_logprobs, batch.with_logprobs)
    tokens[batch.with_logprobs] = theirs
    for place, detail in zip(batch.with_logprobs, found, strict=True):
        del detail.top[batch.sequences[place].params.top_logprobs :]
    for number in batch.with_token_ids:
        place = batch.with_logprobs[number]
        found[number].top = named(logits[place], batch.sequences[place].params.logprob_token_ids)
    return dict(zip(batch.with_logprobs, found, strict=True))


class _Before:
    """Saves the logits that edits may change, for requests with log probabilities.

    A row of a wide vocabulary is copied as a whole only if necessary, since that costs as much as all passes over it.
    """

    def __init__(self, logits: Logits, batch: SamplingBatch) -> None:
        both = sorted(set(batch.edited).intersection(batch.with_logprobs))
        changed = _touched(batch, both) if both and logits.shape[1] >= reductions.WIDE else {}
        self._parts = [(place, ids, logits[place, ids]) for place, ids in changed.items() if ids is not None]
        self._whole = [place for place in both if changed.get(place) is None]
        if self._whole:
            copies = reductions.scratch("before", (len(self._whole), logits.shape[1]))
            self._copies = logits.take(self._whole, axis=0, out=copies, mode="clip")

    def restore(self, logits: Logits) -> None:
        for place, ids, values in self._parts:
            logits[place, ids] = values
        if self._whole:
            logits[self._whole] = self._copies


def _touched(batch: SamplingBatch, places: list[int]) -> dict[int, NDArray[np.int64] | None]:
    """Returns the tokens whose logits may be edited, for each of these rows; None for all tokens."""
    from .logits_processors import touched

    return {place: touched(batch.sequences[place]) for place in places}


def _greatest(logits: Logits, places: list[int]) -> Tokens:
    """Returns the token with the greatest logit for each of these rows, and 0 for all other rows."""
    count, vocab = logits.shape
    if len(places) == count and count * vocab < reductions.SHARED:
        greatest: Tokens = logits.argmax(axis=-1)
        return greatest
    tokens = np.zeros(count, np.int64)

    def work(part: slice) -> None:
        for place in places[part]:
            tokens[place] = logits[place].argmax()

    reductions.in_parts(len(places), vocab, work)
    return tokens


def _sample_random(logits: Logits, few: Sampling, many: Sampling, tokens: Tokens) -> None:
    """Samples a token for each row of both groups.

    Args:
        logits: The logits of the batch, [rows, vocab].
        few: The parameters of the sequences with top_k.
        many: The parameters of the sequences without top_k.
        tokens: The array to which the tokens are written, [rows].
    """
    from .random_sampling import sample_full, sample_top_k

    if few.places:
        _in_parts(logits, few, sample_top_k, False, tokens)
    if many.places:
        if logits.shape[1] < reductions.WIDE:
            _in_parts(logits, many, sample_full, True, tokens)
            return
        from . import wide_vocabulary  # late: for large vocabularies, and random tokens of them

        _in_parts(logits, many, wide_vocabulary.sample, False, tokens)


def _in_parts(logits: Logits, sampling: Sampling, method: _Draw, grouped: bool, tokens: Tokens) -> None:
    vocab, positions, places = logits.shape[1], sampling.positions(), sampling.places

    def work(part: slice) -> None:
        inside = reductions.groups(part.stop - part.start, vocab) if grouped else [slice(0, part.stop - part.start)]
        for group in inside:
            mine = slice(part.start + group.start, part.start + group.stop)
            chosen = places[mine]
            tokens[chosen] = method(reductions.rows(logits, chosen), sampling, mine, positions[mine])

    reductions.in_parts(len(places), vocab, work)
