"""The merges of a GGUF file's tokenizer: those that it lists, or those that follow from the scores of its pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import header as gguf

MAX_PIECE = 4096
"""The most characters of a piece, since the memory for merging it grows with their square."""
HASHED = 0x9E3779B97F4A7C15
"""The number whose powers the characters of a text are multiplied by: odd, and with as many bits set as not."""
AT_ONCE = 1 << 12
"""The tokens that are cut at once: what is computed of them stays in the processor's cache."""
TABLE_BITS = 20
"""The first bits of a hash by which it is looked up."""


def listed(header: gguf.Header) -> list[tuple[str, str]]:
    """Returns the two parts of each merge, of which the first may begin with a space. Raises ValueError."""
    return [
        (first, second) if first and second else _pair(text)
        for text in header.strings("tokenizer.ggml.merges")
        for first, _, second in [text.partition(" ")]
    ]


def _pair(text: str) -> tuple[str, str]:
    """Splits the text of a merge at the first space that is not its first character. Raises ValueError."""
    place = text.index(" ", 1)
    return text[:place], text[place + 1 :]


def from_scores(header: gguf.Header, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Derives the merges from the scores of pieces; the merge with the best score comes first. Raises ValueError."""
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) < header.vocab_size:
        raise ValueError("its pieces have no scores")
    if max(map(len, vocab)) > MAX_PIECE:
        raise ValueError(f"a piece has more than {MAX_PIECE} characters")
    ranked = np.argsort(-np.array([scores[i] for i in vocab.values()]), kind="stable")
    tokens = [*map([*vocab].__getitem__, ranked.tolist())]
    firsts, seconds = _cuts(tokens)
    return [*zip(map(tokens.__getitem__, firsts), map(tokens.__getitem__, seconds), strict=True)]


def _cuts(tokens: Sequence[str]) -> tuple[list[int], list[int]]:
    """Returns all ways to cut a token into two other tokens, as the indices of the first and of the second ones.

    The ways are in the order of the tokens, and those of one token in the order of the cuts. All parts are compared at
    once by hashes, since comparing them one by one takes a second for Gemma's vocabulary. If two hashes were equal by
    accident, the library would refuse the merge.
    """
    some = [_Characters(tokens[first : first + AT_ONCE]) for first in range(0, len(tokens), AT_ONCE)]
    known = _KnownHashes(np.concatenate([each.hashes(each.begins, each.ends) for each in some]))
    firsts: list[int] = []
    seconds: list[int] = []
    for each in some:
        begins, ends = (np.repeat(places, each.ends - each.begins) for places in (each.begins, each.ends))
        cuts = np.arange(len(begins))
        second = known.find(each.hashes(cuts, ends))
        kept = (second >= 0) & (cuts > begins)
        first = known.find(each.hashes(begins[kept], cuts[kept]))
        firsts += first[first >= 0].tolist()
        seconds += second[kept][first >= 0].tolist()
    return firsts, seconds


class _Characters:
    """The characters of some tokens one after the other, with hashes of all parts.

    A hash is a polynomial of a part's characters modulo 2**64.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        """Computes the sums of which hashes are differences."""
        codes = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32)
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        self.ends = np.cumsum(lengths)
        """The end of each token."""
        self.begins = self.ends - lengths
        """The beginning of each token."""
        powers, self._inverses = (
            np.cumprod(np.full(len(codes) + 1, number, np.uint64)) for number in (HASHED, pow(HASHED, -1, 1 << 64))
        )
        self._sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * powers[:-1])])
        self._inverses *= np.uint64(HASHED)

    def hashes(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns the hash of each part with such a beginning and end."""
        found: NDArray[np.uint64] = (self._sums[ends] - self._sums[begins]) * self._inverses[begins]
        return found


class _KnownHashes:
    """Finds hashes among known ones by a table with the place of the first one that begins with the same bits.

    This takes a quarter of the time of a binary search.
    """

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        """Sorts the hashes, and makes the table."""
        self._order = np.append(np.argsort(hashes), -1)
        self._shift = np.uint64(64 - TABLE_BITS)
        ranked = hashes[self._order[:-1]]
        self._ranked = np.append(ranked, np.uint64(2**64 - 1))  # the last one is no known hash, and none is larger
        beginnings = ranked >> self._shift
        places = np.flatnonzero(np.diff(beginnings, prepend=~beginnings[:1]))
        self._most = int(np.diff(places, append=len(ranked)).max(initial=0))  # that begin with the same bits
        self._table = np.full(1 << TABLE_BITS, len(ranked))
        self._table[beginnings[places]] = places

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the index of each hash among the known ones, or -1 if it is not known."""
        places = self._table[hashes >> self._shift]
        for _ in range(self._most - 1):
            places += self._ranked[places] < hashes
        return np.where(self._ranked[places] == hashes, self._order[places], -1)
