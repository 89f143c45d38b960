"""A vocabulary in the form that grammar libraries read, and the rules for special tokens in grammars.

A model may use special tokens in markup and in free text, but not in constrained text: an answer does not show them, so
a constrained string of special tokens would be empty. The libraries know tokens only as bytes. So their vocabulary has
additional tokens that no text contains. One is a byte that is not valid text, which the mask allows only in free text.
And for each special token there is one with a similar text: if the mask allows both, the grammar accepts any such text,
and does not ask for the special token itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....grammar import formats
from ....grammar.notations import quote

NO_TEXT = b"\xfe"
"""A byte that no text in UTF-8 contains: free text may have it, other text may not."""
_LETTERS = {ord(a): ord(b) for a, b in zip("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza", strict=True)}
_LETTERS |= {ord(chr(a).upper()): ord(chr(b).upper()) for a, b in _LETTERS.items()}
_SIGN = re.compile(r'["\'/]')


class Needed(NamedTuple):
    """The special tokens of a grammar's markup, and those that end a value of free text: a boolean per token."""

    markup: NDArray[np.bool_]
    """The tokens that the grammar's markup contains, as a boolean per token of the vocabulary: [vocabulary]."""
    ends: NDArray[np.bool_]
    """The tokens that end a value of free text, in the same form."""


class SpecialTokens:
    """The special tokens of a vocabulary, except those that end a text, which the libraries handle themselves."""

    def __init__(self, pieces: Sequence[bytes], special: Collection[int], eos: Collection[int]) -> None:
        ids = [i for i in sorted(special) if i < len(pieces) and pieces[i] and i not in eos]
        self._texts = [pieces[i].decode("utf-8", "replace") for i in ids]
        self._ids = np.array(ids, np.int64)
        self._eos = np.array(sorted(i for i in eos if i < len(pieces)), np.int64)
        self._free = len(pieces)
        self._like = self._free + 1 + np.arange(len(ids))
        self.pieces = [*pieces, NO_TEXT, *map(_like, self._texts)] if ids else list(pieces)
        """The bytes of each token, followed by the texts that stand for special tokens in grammars."""

    def needed(self, tag: Any) -> Needed:
        """Returns the special tokens that a structural tag needs."""
        found = markup(tag)
        return Needed(self._within(found.literals), self._within(found.value_ends))

    def forbidden(self, mask: NDArray[np.uint32], needed: Needed) -> NDArray[np.int64]:
        """Returns the special tokens that a mask allows, but for which the grammar does not ask.

        The tokens that end a text are always among them, since llguidance knows them as bytes that free text may
        contain.
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
    """Returns another text of the same length with the same kinds of characters."""
    other = text.translate(_LETTERS)
    return (other if other != text else _SIGN.sub("-", text)).encode()


class GrammarTokens:
    """A vocabulary in the form that llguidance reads, with a tokenizer for both libraries.

    It splits text into the longest tokens; the masks do not depend on how text is split.
    """

    def __init__(self, pieces: Sequence[bytes], eos: Sequence[int], special: Collection[int] = ()) -> None:
        """Keeps the vocabulary.

        Args:
            pieces: The bytes of each token.
            eos: The ids of the tokens that end a text.
            special: The ids of the special tokens, as far as they are known.
        """
        self.special = SpecialTokens(pieces, special, eos)
        self.tokens = self.special.pieces
        self.eos_token_id = eos[0]
        self.bos_token_id = None
        self.special_token_ids = list(eos)
        ends = set(eos)
        self._ids = {piece: i for i, piece in enumerate(pieces) if piece and i not in ends}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Splits a text into tokens, in one of several possible ways."""
        data = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        at = 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + size])
                if token is not None:
                    ids.append(token)
                    at += size
                    break
            else:
                raise ValueError("a byte that no token has")
        return ids


def padded(pieces: Sequence[bytes], width: int) -> list[bytes]:
    """Adds empty pieces, or drops the last ones, so that there is one for each logit."""
    return [*pieces, *[b""] * (width - len(pieces))][:width]


MAX_FORCED_BYTES = 128
"""The most bytes of text without a choice that become draft tokens in one step."""
TOO_COMPLEX = "the grammar is too complex to be matched with this text"
_BITS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") > 0, 0, -np.inf)
FORBIDDEN = _BITS.astype(np.float32)
"""[256, 8]: what eight bits of a mask add to eight logits."""


def forbid(
    row: NDArray[np.float32],
    mask: NDArray[np.uint32] | None,
    ends: Collection[int],
    also: NDArray[np.int64] | None = None,
) -> None:
    """Forbids tokens in a logits row.

    Args:
        row: Logits [vocab], which are changed.
        mask: The bits of the allowed tokens; None if no token is allowed.
        ends: Tokens that are allowed in any case.
        also: Tokens that are forbidden although their bit is 1.
    """
    kept_ids = list(ends)
    kept = row[kept_ids]
    if mask is None:
        row[:] = -np.inf
    else:
        _apply(mask.view(np.uint8)[: -(-len(row) // 8)], row)
    if also is not None:
        row[also] = -np.inf
    row[kept_ids] = kept


def _apply(mask: NDArray[np.uint8], row: NDArray[np.float32]) -> None:
    """Forbids the tokens in a logits row whose bits are 0.

    With 152,000 tokens it takes 0.04 to 0.08 ms if nearly all or very few tokens are allowed, as in a string or after
    it, and 0.23 ms if not, where adding is faster than assigning (2026-11).
    """
    allowed = np.unpackbits(mask, bitorder="little")[: len(row)].view(np.bool_)
    few = len(row) // 8
    count = np.count_nonzero(allowed)
    if count > len(row) - few:
        row[np.flatnonzero(~allowed)] = -np.inf
    elif count < few:
        ids = np.flatnonzero(allowed)
        kept = row[ids]
        row.fill(-np.inf)
        row[ids] = kept
    else:
        row += FORBIDDEN[mask].reshape(-1)[: len(row)]


_LITERALS = ("value", "begin", "end", "separator", "triggers")


@dataclass(frozen=True, slots=True)
class Markup:
    """The literal texts of a structural tag."""

    literals: frozenset[str]
    """All literal texts of the format."""
    value_ends: frozenset[str]
    """The literal texts that end a value of free text."""


def markup(tag: Any) -> Markup:
    """Returns the markup of a structural tag, which may be invalid."""
    literals: set[str] = set()
    ends: set[str] = set()
    todo = [tag]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            todo += [part for key, part in one.items() if key != "json_schema"]
            literals.update(text for key in _LITERALS for text in _texts(one.get(key)))
            ends.update(_texts(one.get("end")) if _is_value(one.get("content")) else ())
            ends.update(_texts(quote(one.get("style"))))
    return Markup(frozenset(literals | ends), frozenset(ends))


def _is_value(form: Any) -> bool:
    return isinstance(form, dict) and form.items() >= formats.ANY_VALUE.items()


def _texts(value: Any) -> Iterator[str]:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one:
            yield one
