"""Proposes draft tokens without a model: those that followed an earlier occurrence of a sequence's newest tokens.

An n-gram is a run of n tokens. An index has the last position of each n-gram in prompt and completion, and for each
position the one before with the same n-gram, as in LZ77. It grows with the sequence, so a step takes the same time at
any length.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice

from .draft_length import DraftLength

INDEXED = 3
"""Tokens of an indexed n-gram; a shorter match is too often wrong."""
LONG_MATCH = 16
"""Tokens that a match has at least where many sequences decode: a rejected draft token takes time from all of them."""
MAX_CANDIDATES = 16
"""Places whose matches are compared in a step."""
FIRST_LENGTH = 1
GROWTH = 8
PAUSES = 16, 128
"""Drafts begin with one token and grow fast, since a copied text is copied for long. A rejected one costs up to a step
in all, as the network prepares itself for another number of tokens and again for one (2026-11); so it is not tried
again soon."""
FIRST_OF_MANY = 7
"""The tokens of a sequence's first draft while many sequences decode: after a long match 15 of 16 drafts are right
(2026-11), and a draft of one token would save less time than the network takes to prepare for it."""
LENGTHS = 1, 3, 7, 15, 31
"""The tokens of drafts. With each number of rows that a network has computed, it takes 2 MB more (SmolLM2-135M), and
what it takes with another than in the step before is 12 ms, of 18 for eight rows (2026-11)."""


def nearest(count: int) -> int:
    """Returns the number in LENGTHS that is nearest to `count`, or the larger of two."""
    return min(LENGTHS, key=lambda length: (abs(length - count), -length))


class NgramProposer:
    """Proposes draft tokens for one sequence, to which tokens are only appended."""

    def __init__(self, longest: int) -> None:
        """Begins without tokens. Of two matches of `longest` or more tokens, the newer one is used."""
        self._longest = longest
        self._size = min(INDEXED, longest)
        self._last: dict[bytes, int] = {}  # the position after the last occurrence of each n-gram
        # For each position from `size` on, the previous position with the same n-gram, or 0.
        self._previous = array("q")
        self._distance = 0  # between the end of the sequence and the position of the last match
        self._length = DraftLength(FIRST_LENGTH, GROWTH, *PAUSES)
        self._proposed: list[int] = []
        self._base = 0  # the number of tokens before the last draft; 0 if there was none

    def propose(self, ids: array[int], most: int, few: bool) -> list[int]:
        """Returns draft tokens to follow the ids, or [] if no earlier occurrence of the last ones is long enough.

        Args:
            ids: The tokens of the sequence so far.
            most: The most draft tokens to return.
            few: Whether few sequences decode, so that a wrong draft costs little and short matches are used as well.
        """
        if self._proposed:
            self._length.compare(self._proposed, ids[self._base : self._base + len(self._proposed)])
            self._proposed = []
        count = self._length.next(most)
        if count <= 0:
            return []
        count = min(most, nearest(count))
        place, matched = self._match(ids)
        if matched < (self._size if few else min(self._longest, LONG_MATCH)):
            return []
        if not few and not self._base:
            count = min(most, FIRST_OF_MANY)
        self._base, self._distance = len(ids), len(ids) - place
        draft = ids[place : place + count].tolist()
        while len(draft) < count:  # the match overlaps its continuation, which means that the sequence repeats itself
            draft += draft[-self._distance :][: count - len(draft)]
        # Ends in front of an image's tokens, which are negative.
        self._proposed = draft[: next((n for n, token in enumerate(draft) if token < 0), count)]
        return list(self._proposed)

    def _match(self, ids: array[int]) -> tuple[int, int]:
        """Returns the position after the longest match of the newest tokens, and its length; (0, 0) if none matches."""
        best = longest = 0
        for place in islice(self._places(ids), MAX_CANDIDATES):
            matched = self._matched(ids, place)
            if matched > longest:
                best, longest = place, matched
            if longest == self._longest:
                break
        return best, longest

    def _places(self, ids: array[int]) -> Iterator[int]:
        """Yields positions after possible matches: the one that continues the last match, then the newest first."""
        ngram = self._index(ids)
        if self._distance:
            yield len(ids) - self._distance
        place = self._last.get(ngram, 0)
        while place:
            yield place
            place = self._previous[place - self._size]

    def _index(self, ids: array[int]) -> bytes:
        """Adds the n-grams before the newest one, which has no token after it yet. Returns the newest one."""
        size, last, previous = self._size, self._last, self._previous
        for end in range(size + len(previous), len(ids)):
            ngram = ids[end - size : end].tobytes()
            previous.append(last.get(ngram, 0))
            last[ngram] = end
        return ids[len(ids) - size :].tobytes() if len(ids) >= size else b""

    def _matched(self, ids: array[int], place: int) -> int:
        """Returns how many tokens before a position are equal to those at the end of the sequence."""
        end, most = len(ids), min(self._longest, place)
        matched = 0
        while matched < most and ids[place - 1 - matched] == ids[end - 1 - matched]:
            matched += 1
        return matched
