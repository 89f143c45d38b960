"""The state of a sequence that changes its logits: the tokens so far, for penalties, and the progress of its reasoning.

The limit of reasoning is vLLM's thinking_token_budget. Tokens after the start of reasoning are counted; when the budget
is used up, the ids that end the reasoning are forced one after the other. If reasoning begins again, it gets what is
left of the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ...generation.fair_queue import Thinking


class ThinkingState:
    """The progress of a sequence's reasoning: outside, inside, or in the end that is being forced."""

    __slots__ = ("_end", "_inside", "_limit", "_newest", "_spent")

    def __init__(self, limit: Thinking, generated: Iterable[int]) -> None:
        self._limit = limit
        self._inside = limit.opened
        self._spent = 0
        self._end = 0  # ids of the end that are forced already
        self._newest: deque[int] = deque(maxlen=max(len(limit.start), len(limit.end)))
        for token in generated:
            self.add(token)

    @property
    def forced(self) -> int | None:
        if not self._inside or self._spent < self._limit.budget:
            return None
        return self._limit.end[self._end]

    def add(self, token: int) -> None:
        """Processes the next token of the sequence."""
        due = self.forced
        self._newest.append(token)
        if due is not None:  # a grammar may have forced another one
            self._end = self._end + 1 if token == due else 0
            if self._end == len(self._limit.end):
                self._leave()
        elif not self._inside:
            self._inside = self._ends_with(self._limit.start)
        elif self._ends_with(self._limit.end):
            self._leave()
        else:
            self._spent += 1
            self._end = self._begun() if self._spent == self._limit.budget else 0

    def copy(self) -> ThinkingState:
        other = ThinkingState(self._limit, ())
        other._inside, other._spent, other._end = self._inside, self._spent, self._end
        other._newest = self._newest.copy()
        return other

    def _leave(self) -> None:
        self._inside, self._end = False, 0

    def _begun(self) -> int:
        """Returns how many ids of the end of the reasoning the sequence already has."""
        end = self._limit.end
        return next((size for size in range(len(end) - 1, 0, -1) if self._ends_with(end[:size])), 0)

    def _ends_with(self, tag: tuple[int, ...]) -> bool:
        return bool(tag) and tuple(self._newest)[-len(tag) :] == tag


class TokenCounts:
    """The distinct tokens of a sequence, with their counts in the completion; adding a token needs no search."""

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
        """The distinct tokens of the prompt and the completion."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """The number of times that each of `ids` was generated."""
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
