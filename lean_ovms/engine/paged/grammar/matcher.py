"""The interface of grammars that are matched with bitmasks, for any grammar library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...generation.loaded_model import Compiler, GrammarChecker
from .special_tokens import SpecialTokens

MAX_FORCED_BYTES = 128
"""The most bytes of text without a choice that become draft tokens in one step."""
TOO_COMPLEX = "the grammar is too complex to be matched with this text"
_BITS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") > 0, 0, -np.inf)
FORBIDDEN = _BITS.astype(np.float32)
"""[256, 8]: what eight bits of a mask add to eight logits. Adding is ten times as fast as a boolean assignment."""


class GrammarTokens:
    """A vocabulary in the form that llguidance reads, which tokenizes for both libraries.

    It tokenizes by the longest pieces; no mask depends on that. special: what is known of its special tokens.
    """

    def __init__(self, pieces: Sequence[bytes], eos: Sequence[int], special: Collection[int] = ()) -> None:
        self.special = SpecialTokens(pieces, special, eos)
        self.tokens = self.special.pieces
        self.eos_token_id = eos[0]
        self.bos_token_id = None
        self.special_token_ids = list(eos)
        ends = set(eos)
        self._ids = {piece: i for i, piece in enumerate(pieces) if piece and i not in ends}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokenizes text in one way of several: a model may write the same text with other tokens."""
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


class Matcher(Protocol):
    """The state of one text in its grammar."""

    def prepare(self) -> None:
        """Computes the mask early, while the network computes. Optional before `apply`."""

    def apply(self, row: NDArray[np.float32]) -> None:
        """Forbids, in a logits row [vocab], what may not come next. Raises logits.NoToken."""

    def consume(self, token: int) -> bool:
        """Takes the next token; True when the grammar is over and nothing may follow."""

    def forced(self) -> list[int]:
        """Returns the GrammarTokens of the text that has to come next, as far as the grammar leaves no choice.

        The model may write the same text with other tokens, so these are draft tokens.
        """

    def fork(self) -> Matcher:
        """Returns the same state for another sequence that goes on from here."""


class Library(Compiler, GrammarChecker, Protocol):
    """A grammar library with a vocabulary: it compiles grammars and makes the matchers of sequences."""

    def matcher(self, tag: str, stops: frozenset[int]) -> Matcher:
        """Returns a matcher at a grammar's beginning. stops: tokens that may end the text where the grammar can end."""


Prepare = Callable[[Sequence[Matcher]], None]
"""Computes the masks of a step."""


def one_by_one(matchers: Sequence[Matcher]) -> None:
    """Computes the masks of these matchers, one after the other."""
    for matcher in matchers:
        matcher.prepare()


def padded(pieces: Sequence[bytes], width: int) -> list[bytes]:
    """Returns the pieces with as many empty ones, or as few of them, as give one for each logit."""
    return [*pieces, *[b""] * (width - len(pieces))][:width]


def forbid(
    row: NDArray[np.float32],
    mask: NDArray[np.uint32] | None,
    ends: Collection[int],
    also: NDArray[np.int64] | None = None,
) -> None:
    """Forbids tokens in a logits row.

    Args:
        row: Logits [vocab], which are changed.
        mask: The bits of the tokens that are left; None for none of them.
        ends: Tokens that are left in any case.
        also: Tokens that are forbidden although their bit is 1.
    """
    kept_ids = list(ends)
    kept = row[kept_ids]
    if mask is None:
        row[:] = -np.inf
    else:
        row += FORBIDDEN[mask.view(np.uint8)[: -(-len(row) // 8)]].reshape(-1)[: len(row)]
    if also is not None:
        row[also] = -np.inf
    row[kept_ids] = kept
