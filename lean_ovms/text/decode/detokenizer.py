"""Streaming detokenization: token ids to text, without incomplete characters and without delay.

Detokenizer looks ids up in the model's vocabulary. Only incomplete UTF-8 waits for its remaining bytes and, for models
with clean-up, a space that may be removed. WindowDetokenizer is for models whose vocabulary is not exact: it chooses
the ids that the engine decodes, and turns the texts into deltas. There is one object per choice. Neither knows the
engine, stop strings or tags.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Awaitable, Callable, Sequence

from ...types.engine import CLEAN_UP, Vocabulary

SLICE = 4096
"""The number of ids that are converted in one call, which takes 0.4 ms."""
_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes one sequence with the vocabulary.

    A call takes 0.3 us for a token of ASCII alone, 0.5 us for others, and 0.1 us for each additional token.
    """

    __slots__ = ("_clean", "_decode", "_hidden", "_pieces", "_plain", "_strip", "_unfinished")

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool) -> None:
        self._pieces = vocabulary.pieces
        self._hidden = vocabulary.special if skip_special_tokens else frozenset[int]()
        self._strip = vocabulary.strip_leading_space
        self._unfinished = _UTF8("replace")
        self._decode = self._unfinished.decode
        self._clean = CleanUp() if vocabulary.clean_up else None
        self._plain = self._clean is None and not self._strip  # the text depends on the token alone

    def feed(self, tokens: Sequence[int]) -> str:
        """Takes tokens, and returns the text that is complete with them. Ids outside the vocabulary have no text."""
        pieces, hidden = self._pieces, self._hidden
        if len(tokens) == 1 and self._plain and 0 <= (token := tokens[0]) < len(pieces):
            data = pieces[token]
            if data.isascii() and not self._unfinished.buffer:
                return "" if token in hidden else data.decode("ascii")
        try:
            data = b"".join([pieces[token] for token in tokens if token not in hidden and token >= 0])
        except IndexError:  # rare: the model's head may have more ids than its tokenizer
            size = len(pieces)
            data = b"".join([pieces[token] for token in tokens if token not in hidden and 0 <= token < size])
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        text = self._decode(data)
        return text if self._clean is None else self._clean.feed(text)

    def flush(self) -> str:
        """Returns the rest at the end of the text: U+FFFD for an incomplete character."""
        text = self._decode(b"", True)
        return text if self._clean is None else self._clean.feed(text) + self._clean.flush()

    def piece(self, token: int) -> bytes:
        """Returns the bytes of a token, also of a special one, for log probabilities; b"" if it does not exist."""
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""


def decode_slices(tokens: list[int], detokenizer: Detokenizer) -> str:
    """Returns the text of many ids. When called in a thread, other threads can run in between."""
    texts = [detokenizer.feed(tokens[start : start + SLICE]) for start in range(0, len(tokens), SLICE)]
    return "".join([*texts, detokenizer.flush()])


Decode = Callable[[list[int], bool], Awaitable[str]]
"""The type of a function from ids and skip_special_tokens to text, by the model's own detokenizer."""

_WINDOW, _MAX_WINDOW = 64, 128
"""The number of ids decoded again in each step before the window moves: if nothing is held back, and in any case."""

_CONTEXT = 8
"""The ids kept before a new window, since a token's text depends on them (spaces, bytes of a character)."""

_UNSTABLE = re.compile(r"(?:\ufffd{1,3}| (?:n'?)?)\Z")
"""Matches an end of the text that further tokens may change: up to three bytes of a character, or a space that clean-up
may remove (openvino_tokenizers' clean_up_tokenization_spaces removes it before .,?! and in " n't")."""


class WindowDetokenizer:
    """Decodes one sequence with the engine's decoder, for models whose vocabulary is not exact.

    The engine's decoder takes 0.2 ms for any length up to 128 ids.
    """

    __slots__ = ("_ids", "_pending", "_printed")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._printed = ""  # the beginning of the window's text, already returned
        self._pending = ""  # the text after it, which may still change

    async def feed(self, tokens: Sequence[int], final: bool, skip_special_tokens: bool, decode: Decode) -> str:
        """Takes tokens, and returns the new text, all of it if `final` is set. Passes on exceptions of `decode`.

        Args:
            tokens: The new tokens.
            final: Whether they are the last ones.
            skip_special_tokens: Whether special tokens are omitted from the text.
            decode: The engine's decoder.
        """
        text = await self._new_text(tokens, skip_special_tokens, decode) if tokens else ""
        if final:
            text, self._pending = text + self._pending, ""
        return text

    async def _new_text(self, tokens: Sequence[int], skip_special_tokens: bool, decode: Decode) -> str:
        if len(self._ids) > (_MAX_WINDOW if self._pending else _WINDOW):  # the window moves: its text is returned
            del self._ids[:-_CONTEXT]
            self._printed = (await decode(self._ids[:], skip_special_tokens)).removesuffix(self._pending)
        self._ids += tokens
        text = await decode(self._ids[:], skip_special_tokens)
        start = _common_length(self._printed, text)
        unstable = _UNSTABLE.search(text, start)
        end = unstable.start() if unstable else len(text)
        self._printed, self._pending = text[:end], text[end:]
        return text[start:end]


def _common_length(printed: str, text: str) -> int:
    """Returns the length of the texts' common prefix: all of `printed`, unless decoding again changed it."""
    if text.startswith(printed):
        return len(printed)
    return next((i for i, (a, b) in enumerate(zip(printed, text, strict=False)) if a != b), len(text))


MATCH = re.compile(CLEAN_UP)

_PARTIAL = re.compile(r" (?:'[rv]?|n'?)?\Z")


class CleanUp:
    """Removes spaces before punctuation from a stream of text, as some models' detokenizers do.

    openvino_tokenizers' clean_up_tokenization_spaces, used by models exported with older versions (Llama 3, Phi 2,
    StarCoder), is one regular expression over the whole text: " ." becomes ".", " n't" becomes "n't". Doing the same
    here saves a decode in the engine for each step. A space at the end of the text is held back, together with what may
    follow it in a match.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> str:
        """Takes new text, and returns the text that cannot change any more."""
        if not self._pending and " " not in text:
            return text
        text = self._pending + text
        done: list[str] = []
        at = 0
        for match in MATCH.finditer(text):
            done += text[at : match.start()], match[0].strip(" ")
            at = match.end()
        partial = _PARTIAL.search(text, at)
        end = partial.start() if partial else len(text)
        self._pending = text[end:]
        return "".join(done) + text[at:end]

    def flush(self) -> str:
        """Returns the text held back, at the end of the text."""
        pending, self._pending = self._pending, ""
        return pending
