"""Special tokens in grammars: a model may write markup with them, and free text, but nothing that is constrained.

An answer does not show them, so a string of twelve characters that were special tokens would be empty. The libraries
know tokens as bytes only. So their vocabulary gets more tokens than the model has, which no text consists of: a byte
that is no text, which the mask has in free text only, and for each special token a text that is like its own. Where
the mask has both that text and the token, the grammar does not ask for the token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_TEXT = b"\xfe"
"""A byte that is in no UTF-8: free text may have it, other text may not."""
_LETTERS = {ord(a): ord(b) for a, b in zip("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza", strict=True)}
_LETTERS |= {ord(chr(a).upper()): ord(chr(b).upper()) for a, b in _LETTERS.items()}
_SIGN = re.compile(r'["\'/]')


class Needed(NamedTuple):
    """Which special tokens a grammar's markup has, and which of them end a value of free text, each as booleans."""

    markup: NDArray[np.bool_]
    ends: NDArray[np.bool_]


class SpecialTokens:
    """The special tokens of a vocabulary but those that end a text, which the libraries know themselves."""

    def __init__(self, pieces: Sequence[bytes], special: Collection[int], eos: Collection[int]) -> None:
        ids = [i for i in sorted(special) if i < len(pieces) and pieces[i] and i not in eos]
        self._texts = [pieces[i].decode("utf-8", "replace") for i in ids]
        self._ids = np.array(ids, np.int64)
        self._eos = np.array(sorted(i for i in eos if i < len(pieces)), np.int64)
        self._free = len(pieces)
        self._like = self._free + 1 + np.arange(len(ids))
        self.pieces = [*pieces, NO_TEXT, *map(_like, self._texts)] if ids else list(pieces)
        """The bytes of each token, and behind them texts that stand for special tokens in grammars."""

    def needed(self, tag: Any) -> Needed:
        """Returns what a structural tag needs."""
        from ....grammar.markup import markup  # the first grammar imports it

        found = markup(tag)
        return Needed(self._within(found.literals), self._within(found.value_ends))

    def forbidden(self, mask: NDArray[np.uint32], needed: Needed) -> NDArray[np.int64]:
        """Returns the special tokens in a mask that the grammar does not ask for.

        The tokens that end a text are always among them: to llguidance they are bytes, which free text may have, too.
        """
        if not len(self._ids) or _bits(mask, np.array([self._free]))[0]:
            return self._eos
        allowed = needed.markup & (needed.ends | ~_bits(mask, self._like))
        return np.concatenate([self._eos, self._ids[~allowed]])

    def _within(self, texts: Collection[str]) -> NDArray[np.bool_]:
        whole = "\0".join(texts)
        return np.array([text in whole for text in self._texts], np.bool_)


def _bits(mask: NDArray[np.uint32], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (mask[ids >> 5] >> (ids & 31).astype(np.uint32) & 1).astype(np.bool_)
    return found


def _like(text: str) -> bytes:
    """Returns a text of the same length and the same kinds of characters, which is not this one."""
    other = text.translate(_LETTERS)
    return (other if other != text else _SIGN.sub("-", text)).encode()
