"""Texts in ASCII to ids by a WordPiece vocabulary, read from the tokenizer's IR: exactly the ids of the IR.

Measured 2026-11 under load: a text of 25 words takes 25 us of CPU here, a call of the IR 1,800 us, or 70 us a text in a
list. BERT's tokenizer deletes control characters, folds case, splits at white space, isolates punctuation, and takes
the longest pieces of a word from the left. For printable ASCII that is all. Other texts, and graphs with anything else
in them, are for the IR.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..genai.ir import Graph, NotUnderstood
from ..genai.text_encoder import LITERALS

CHARACTERS = {"CharsMapNormalization": 2, "CaseFold": 2, "NormalizeUnicode": 2, "RegexNormalization": 2}
"""The input for characters of each operator between the special tokens and the words."""
NO_CHANGE_IN_ASCII = frozenset((
    rb"([\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\p{Cf}])",
    rb"\s",
    rb"([\p{Han}])",
    rb"\p{Mn}",
))  # fmt: skip
"""Patterns of RegexNormalization that change no printable ASCII, and white space to a blank."""
PUNCTUATION = rb"[!-/]|[:-@]|[\[-`]|[{-~]|"
"""The start of the pattern of what is isolated; other characters follow."""
LONGEST_WORD = 24
MAX_NEW_WORDS = 64
"""New words of a call, up to 50 us each; texts with further ones are for the IR, which is faster with many."""
MAX_KNOWN_WORDS = 1 << 16
"""About 10 MB."""
_READABLE = re.compile(r"[\t\n\r -~]*")
_WORDS = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_MANY = re.compile(rf"[0-9A-Za-z]{{{LONGEST_WORD + 1}}}")


class WordPieces:
    """The vocabulary of one tokenizer, and the ids of words that it was asked for."""

    def __init__(self, graph: Graph) -> None:
        """Raises NotUnderstood, KeyError or ValueError."""
        layer = graph.only("WordpieceTokenizer")
        if graph.attributes(layer).get("suffix_indicator") != "##":
            raise NotUnderstood("pieces of words without ##")
        self._special, self._folds = _before(graph, layer)
        text = graph.bytes(layer, 7).decode("latin-1")  # a character for each byte; only pieces in ASCII are looked up
        places = zip(graph.ints(layer, 5), graph.ints(layer, 6), strict=True)
        pieces = [text[start:end] for start, end in places]
        self._ids = dict(zip(pieces, range(len(pieces)), strict=True))
        self._longest = min(LONGEST_WORD, max(map(len, self._ids), default=0))
        self._known: dict[str, list[int]] = {}
        self._new_words = 0  # that this call may still look up

    def encode(self, texts: Sequence[str]) -> list[list[int] | None]:
        """The ids of each text without special tokens; None: the IR has to find them."""
        self._new_words = MAX_NEW_WORDS
        return [self._text(text) for text in texts]

    def _text(self, text: str) -> list[int] | None:
        if not _READABLE.fullmatch(text) or _MANY.search(text) or self._special.search(text):
            return None
        ids: list[int] = []
        known = self._known
        for word in _WORDS.findall(text.lower() if self._folds else text):
            found = known.get(word)
            if found is None:
                if not self._new_words:
                    return None
                found = self._word(word)
                if found is None:
                    return None
            ids += found
        return ids

    def _word(self, word: str) -> list[int] | None:
        """The ids of a new word, which are remembered: the longest pieces from the left. None if no piece fits."""
        self._new_words -= 1
        found: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = self._ids.get(prefix + word[start:end])
                if piece is not None:
                    found.append(piece)
                    start = end
                    break
            else:
                return None
        if len(self._known) >= MAX_KNOWN_WORDS:
            self._known.clear()
        self._known[word] = found
        return found


def _before(graph: Graph, layer: str) -> tuple[re.Pattern[str], bool]:
    """The pattern of the special tokens, and whether case is folded. Raises NotUnderstood for other graphs."""
    isolate = graph.source(layer, 4)
    blanks = graph.source(isolate, 4)
    for split, behaviour in ((isolate, "isolate"), (blanks, "remove")):
        how = graph.attributes(split)
        if graph.kind(split) != "RegexSplit" or (how["behaviour"], how["invert"]) != (behaviour, "false"):
            raise NotUnderstood("words are not split as BERT's")
    if graph.bytes(blanks, 6) != rb"\s+" or not graph.bytes(isolate, 6).startswith(PUNCTUATION):
        raise NotUnderstood("words are split by other patterns than BERT's")
    folds = False
    above = graph.source(blanks, 4)
    while (kind := graph.kind(above)) != "SpecialTokensSplit":
        folds |= _folds(graph, above)
        above = graph.source(above, CHARACTERS[kind])
    pattern = graph.bytes(above, 5).decode()
    if graph.source_kind(above, 4) != "StringTensorUnpack" or not LITERALS.fullmatch(pattern):
        raise NotUnderstood(f"special tokens {pattern!r}")
    return re.compile(pattern), folds


def _folds(graph: Graph, layer: str) -> bool:
    """Whether a normalization folds case. Raises NotUnderstood if it does anything else to printable ASCII."""
    kind, how = graph.kind(layer), graph.attributes(layer)
    if kind not in CHARACTERS or (kind == "RegexNormalization" and graph.bytes(layer, 4) not in NO_CHANGE_IN_ASCII):
        raise NotUnderstood(f"{kind} in a tokenizer")
    if kind == "CharsMapNormalization":
        spaces = (how.get(name) for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"))
        if any(value != "false" for value in spaces) or how.get("normalization_form") not in (
            "",
            "nfd",
            "nfc",
            "identity",
        ):
            raise NotUnderstood("characters are mapped")
        return how.get("case_fold") == "true"
    return kind == "CaseFold"
