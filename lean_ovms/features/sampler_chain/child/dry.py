"""DRY, "Don't Repeat Yourself": penalises tokens that would continue a sequence that occurred before.

If the text ends with L tokens that also stand elsewhere in it, followed by a token, that token's logit is reduced by
multiplier * base ** (L - allowed length), where L is the greatest such length. Sequence breakers, such as a line break,
end a sequence. The semantics are those of llama.cpp, whose sampler is a port of KoboldCpp's by pi6am
(https://github.com/LostRuins/koboldcpp/pull/982). It searches the text again for each token; here the lengths of all
repetitions are kept, since a new token either makes one longer by one or ends it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from ....engine.paged.engine import ModelTokenizer
from ....types import Json

LONGEST = 256
"""The most tokens of a repetition that count beyond the allowed length, which limits the time for a prompt."""
CACHED = 8
"""The most sets of sequence breakers whose tokens are kept."""
MAX_TAIL = 20
"""The most tokens after the first one of a sequence breaker, as in llama.cpp."""
LOG_MAX = 88.7228391
"""The logarithm of the greatest number in single precision, which limits the exponent as in llama.cpp."""
MAX_PENALTY = 1e30
"""The greatest penalty, with which a token can still be chosen if no other one is left."""


Tails = frozenset[tuple[int, ...]]
"""The tokens that complete a sequence breaker after one that begins it: none if it has a whole one."""


class Breakers:
    """The sequence breakers of a request, as tokens."""

    def __init__(self, find: Callable[[int], Tails], longest: int) -> None:
        """Keeps the function that finds breakers.

        Args:
            find: Returns the ways to complete a breaker that a token begins; empty if it begins none.
            longest: The most tokens that complete one.
        """
        self.tails = cache(find)
        """Returns the ways to complete a breaker that a token begins. Only the tokens of a text are looked at."""
        self.longest = longest
        """The most tokens that complete a breaker."""


@lru_cache(CACHED)
def breakers_of(tokenizer: ModelTokenizer, texts: tuple[str, ...]) -> Breakers:
    """Returns the sequence breakers for these texts.

    A token begins one if it contains it, or ends with its beginning. Finding these tokens in a whole vocabulary of
    262,144 took 0.06 s, and up to 0.5 s for texts that a client chose (2026-11).
    """

    @cache
    def ids_of(rest: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(rest, False))[:MAX_TAIL]

    pieces, words = tokenizer.vocabulary.pieces, [text.encode() for text in texts]
    endings: dict[bytes, list[tuple[bytes, str]]] = {}
    for word in words:
        for size in range(1, len(word)):
            if rest := _decoded(word[size:]):
                endings.setdefault(word[:size], []).append((word, rest))

    def find(token: int) -> Tails:
        if not 0 <= token < len(pieces):  # of an image, or without a text
            return frozenset()
        piece = pieces[token]
        begun = [endings[part] for begin in range(len(piece)) if (part := piece[begin:]) in endings]
        tails = {ids_of(rest) for pairs in begun for word, rest in pairs if word not in piece}
        return frozenset({*tails, ()} if any(word in piece for word in words) else tails)

    return Breakers(find, MAX_TAIL if endings else 0)


def _decoded(rest: bytes) -> str:
    """Returns the text of bytes, or "" if they begin inside a character, since no text is tokenized like them."""
    try:
        return rest.decode()
    except UnicodeDecodeError:
        return ""


class Dry:
    """The repetitions at the end of one sequence."""

    def __init__(self, settings: Json, breakers: Breakers) -> None:
        """Begins with an empty text; `settings` are those of the chain."""
        self._multiplier, self._base = float(settings["dry_multiplier"]), float(settings["dry_base"])
        self._allowed, self._window = int(settings["dry_allowed_length"]), int(settings["dry_penalty_last_n"])
        self._most = int(LOG_MAX / np.log(self._base)) if self._base > 1.000001 else 0
        self._breakers = breakers
        self._ids = np.empty(256, np.int64)
        self._count = 0
        self._lengths = np.zeros(257, np.int32)  # of the repetition that ends before each index
        self._breaker = -1, 0  # the index of the latest breaker's first token, and the number of its others

    def penalties(self, ids: array[int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns the tokens that would continue a repetition of the text `ids`, in ascending order, with penalties."""
        self._follow(ids)
        continued, lengths = self._repetitions()
        if not len(continued):
            return continued, np.zeros(0, np.float32)
        tokens, place = np.unique(continued, return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, place.reshape(-1), lengths)
        free = [() not in self._breakers.tails(token) and token >= 0 for token in tokens.tolist()]
        tokens, exponents = tokens[free], longest[free] - self._allowed
        if self._most:
            exponents = np.minimum(exponents, self._most)
        amounts = np.minimum(self._multiplier * np.power(self._base, exponents.astype(np.float64)), MAX_PENALTY)
        return tokens, amounts.astype(np.float32)

    def _start(self, count: int) -> int:
        """Returns the index of the first token that counts, in a text of this length."""
        return 0 if self._window < 0 else max(0, count - self._window)

    def _repetitions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the tokens after each repetition that is long enough, and the lengths of these repetitions."""
        count, start = self._count, self._start(self._count)
        head, behind = self._breaker
        limit = count - 1 - head - behind if head >= start else count - start
        lengths = self._lengths[start + 1 : count].astype(np.int64)
        lengths = np.minimum(np.minimum(lengths, limit), np.arange(1, len(lengths) + 1))
        long = np.flatnonzero(lengths >= self._allowed)
        return self._ids[start + 1 : count][long], lengths[long]

    def _follow(self, ids: array[int]) -> None:
        """Processes the tokens of a text after those that are known."""
        new = len(ids) - self._count
        while len(self._ids) < len(ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths[1:])])
        self._ids[self._count : len(ids)] = ids[self._count :]
        if new > 1 and not self._count:
            self._begin(len(ids))
            return
        for _ in range(new):
            self._add(int(self._ids[self._count]))

    def _begin(self, count: int) -> None:
        """Finds repetitions of the end of a prompt of `count` tokens: first those of one token, then longer ones."""
        self._count, start = count, self._start(count)
        ends = np.arange(start, count - 1)
        for length in range(min(self._allowed + LONGEST, count)):
            ends = ends[ends >= length]
            ends = ends[self._ids[ends - length] == self._ids[count - 1 - length]]
            if not len(ends):
                break
            self._lengths[ends + 1] = length + 1
        window = self._ids[start:count].tolist()
        for place in reversed(range(len(window))):
            if not (begun := self._breakers.tails(window[place])):
                continue
            following = tuple(window[place + 1 : place + 1 + self._breakers.longest])
            tails = [len(tail) for tail in begun if following[: len(tail)] == tail]
            if tails:
                self._breaker = start + place, max(tails)
                break

    def _add(self, token: int) -> None:
        """Processes one more token, which is in `ids` already."""
        at, start = self._count, self._start(self._count)
        self._count += 1
        places = start + np.flatnonzero(self._ids[start:at] == token)
        longer = np.minimum(self._lengths[places] + 1, self._allowed + LONGEST)
        self._lengths[start : at + 2] = 0
        self._lengths[places + 1] = longer
        for size in range(self._breakers.longest + 1):
            head = at - size
            if head < max(0, self._breaker[0]):
                break
            if tuple(self._ids[head + 1 : at + 1].tolist()) in self._breakers.tails(int(self._ids[head])):
                self._breaker = head, size
                break
