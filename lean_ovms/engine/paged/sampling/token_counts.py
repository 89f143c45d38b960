"""The different tokens of a sequence, for penalties. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """The different tokens of a sequence and how often each was generated; a new token costs no search."""

    def __init__(self, prompt: Iterable[int], generated: Iterable[int]) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.empty(256, np.int64)
        self._counts = np.zeros(256, np.float32)
        for token in prompt:
            if token >= 0:  # not of an image
                self._place(token)
        for token in generated:
            self.add(token)

    def add(self, token: int) -> None:
        """Counts one more generated token."""
        place = self._place(token)  # which may make the tables longer
        self._counts[place] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """Tokens of prompt and completion, each once."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of `ids` was generated."""
        return self._counts[: len(self._places)]

    def copy(self) -> TokenCounts:
        other = TokenCounts((), ())
        other._places, other._ids, other._counts = dict(self._places), self._ids.copy(), self._counts.copy()
        return other

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        return place
