"""The interface of grammars that are matched with bitmasks, their library by the options, and special tokens in them.

A model may write markup with special tokens, and free text, but nothing that is constrained. An answer does not show
them, so a string of twelve characters that were special tokens would be empty. The libraries know tokens as bytes only.
So their vocabulary gets more tokens than the model has, which no text consists of: a byte that is no text, which the
mask has in free text only, and for each special token a text that is like its own. Where the mask has both that text
and the token, the grammar does not ask for the token.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ....config import EngineConfig
from ....manifest import GRAMMAR_LIBRARY
from ....types.engine import Vocabulary
from ...generation.backend import Compiler, GrammarChecker
from ...loading import pipeline_choice

if TYPE_CHECKING:
    from ...generation.grammar_limits import GrammarBounds, GrammarCost

log = logging.getLogger(__name__)

NO_TEXT = b"\xfe"
"""A byte that is in no UTF-8: free text may have it, other text may not."""
_LETTERS = {ord(a): ord(b) for a, b in zip("abcdefghijklmnopqrstuvwxyz", "bcdefghijklmnopqrstuvwxyza", strict=True)}
_LETTERS |= {ord(chr(a).upper()): ord(chr(b).upper()) for a, b in _LETTERS.items()}
_SIGN = re.compile(r'["\'/]')


class Needed(NamedTuple):
    """The special tokens in a grammar's markup, and those of them that end a value of free text, each as booleans."""

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


MAX_FORCED_BYTES = 128
"""The most bytes of text without a choice that become draft tokens in one step."""
TOO_COMPLEX = "the grammar is too complex to be matched with this text"
_BITS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") > 0, 0, -np.inf)
FORBIDDEN = _BITS.astype(np.float32)
"""[256, 8]: what eight bits of a mask add to eight logits. Adding is ten times as fast as a boolean assignment."""


class GrammarTokens:
    """A vocabulary in the form that llguidance reads, which tokenizes for both libraries.

    It tokenizes by the longest pieces; no mask depends on that.
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
        """Forbids, in a logits row [vocab], what may not come next. Raises params.NoToken."""

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
        """Returns a matcher that stands at the beginning of a grammar.

        Args:
            tag: The grammar.
            stops: The tokens that may end the text where the grammar can end.
        """

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Computes the masks of a step, which are those of matchers that it has made."""


NewLibrary = Callable[[EngineConfig, Vocabulary, int, Sequence[int]], Library]
"""Makes a grammar library for options, a vocabulary, the width of logits and the tokens that end a text."""


class OtherLibrary(Protocol):
    """A grammar library that a feature supplies."""

    @property
    def missing(self) -> str:
        """What is missing where its packages are not installed, as a part of a sentence; empty: nothing is."""

    @property
    def install(self) -> str:
        """The command that installs it, as a sentence."""

    def load(self) -> NewLibrary:
        """Imports it. Returns what makes the library. Raises StartError."""


def compiler(
    config: EngineConfig, new: NewLibrary | None, words: Vocabulary, width: int, eos: Sequence[int]
) -> Library | None:
    """Returns what compiles grammars for a vocabulary.

    Args:
        config: The options.
        new: Makes the library; None: the server has none.
        words: The texts of the tokens.
        width: The width of logits.
        eos: The tokens that end a text.

    Returns:
        The library; None if the server has none, or the texts of the tokens, or those that end a text, are unknown.
    """
    if new is None:
        refused = "schemas, grammars and required tool calls are refused: the server has no grammar library"
        log.warning("%s: %s", config.served_name, refused)
        return None
    if not words.exact or not eos:
        unknown = "that end a text are unknown" if words.exact else "have texts that are not known for certain"
        text = "%s: schemas, grammars and required tool calls are refused, as its tokens %s"
        log.warning(text, config.served_name, unknown)
        return None
    return new(config, words, width, eos)


def chosen(config: EngineConfig) -> NewLibrary | None:
    """Returns what makes a grammar library; None: the server has none.

    Only the library that is used is imported, and the usual one by the first grammar. Raises StartError.
    """
    other: OtherLibrary | None = pipeline_choice.other_library(config)
    if other is not None:
        return other.load()
    return _at_first_grammar if config.wants(GRAMMAR_LIBRARY) else None


class FirstUse:
    """A Library that its first grammar makes. Thread-safe.

    Many models never see one, and llguidance takes 70 ms and 15 MB of a vocabulary of 150,000 tokens (2026-11).
    """

    def __init__(self, make: Callable[[], Library]) -> None:
        """Keeps what makes the library."""
        self._make = make
        self._made: Library | None = None
        self._lock = threading.Lock()

    def _library(self) -> Library:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def compile(self, tag: str) -> None:
        """Implements Compiler.compile."""
        self._library().compile(tag)

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Implements GrammarChecker.check."""
        return self._library().check(tag, bounds)

    def matcher(self, tag: str, stops: frozenset[int]) -> Matcher:
        """Implements Library.matcher."""
        return self._library().matcher(tag, stops)

    def clear(self) -> None:
        """Implements Compiler.clear."""
        if self._made is not None:
            self._made.clear()

    def stop(self) -> None:
        """Implements GrammarChecker.stop."""
        if self._made is not None:
            self._made.stop()

    def prepare(self, matchers: Sequence[Matcher]) -> None:
        """Implements Library.prepare."""
        if matchers:
            self._library().prepare(matchers)


def _at_first_grammar(config: EngineConfig, words: Vocabulary, width: int, eos: Sequence[int]) -> Library:
    return FirstUse(lambda: config.part(GRAMMAR_LIBRARY)(config, words, width, eos))


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
