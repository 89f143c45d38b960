"""Prompt lookup decoding: drafts the tokens that followed the last earlier occurrence of the newest ones."""

from __future__ import annotations

from array import array

import numpy as np

from ..sequence import Sequence


class PromptLookup:
    """A proposer.Proposer without a model and without a state."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        for sequence, most in wanted:
            sequence.draft_tokens = guess(sequence.ids, most, sequence.params.ngram) if most > 0 else []

    def leave(self, sequence: Sequence) -> None:
        pass


def guess(ids: array[int], most: int, longest: int = 3) -> list[int]:
    """Returns up to `most` tokens that followed the last earlier occurrence of the newest `longest` or fewer tokens."""
    text = np.array(ids, np.int64)
    for size in range(min(longest, len(text) - 1), 0, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
        places = np.flatnonzero((windows == text[-size:]).all(axis=1))
        if len(places):
            start = int(places[-1]) + size
            found: list[int] = text[start : start + most].tolist()
            return found[: next((n for n, token in enumerate(found) if token < 0), most)]  # not of an image
    return []
