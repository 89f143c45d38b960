"""Byte pair encoding of ASCII text in Python, from the tables in openvino_tokenizer.xml.

A call of the model's own tokenizer costs 0.6 ms of CPU time for 90 tokens, and 1.3 ms with cold caches; this costs a
tenth, because the ids of a word are remembered. Only ASCII: the classes of Unicode in the pattern that finds words are
sets of a few characters then. Any other text, and a model with another tokenizer, is the tokenizer's own affair.
"""

from __future__ import annotations

import re
from itertools import pairwise

from .ir import Graph, NotUnderstood

MAX_MERGES = 1 << 15
"""Reading more takes 0.1 to 1 s, and a step of a model with so many takes far longer than its tokenizer."""
MAX_WORDS, MAX_LETTERS = 1 << 16, 64
"""Words that are remembered, and the letters of the longest; the time for a new one grows with their square."""
MAX_NEW_LETTERS = 4000
"""Letters of new words in one text: 2 to 4 ms. The tokenizer is faster where nearly all words are new."""

_NO_MERGE = (1 << 62, 0)
_PIECES = re.compile(r"\\[pP]\{?\w+\}?|\\.|\[\^?|\]|[^\\\[\]]+", re.DOTALL)
_CLASSES = {
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "Lt": "",
    "Lm": "",
    "Lo": "",
    "M": "",
    "Mn": "",
    "N": "0-9",
    "Nd": "0-9",
    "P": r"!-#%-*,-/:;?@\[-\]_{}",
    "S": r"$+<=>\^`|~",
}
"""The ASCII characters of Unicode's general categories."""
_UNICODE_FORMS = ("nfc", "nfd", "nfkc", "nfkd")
_GROUP = re.compile(r"\((?!\?(?:[:=!]|i:))")
"""A group that findall would return, or that means something else in PCRE2."""
_ESCAPES = frozenset("sSrntdD.+*?|()[]{}^$/-'\\")


class BytePairs:
    """The words of ASCII text as ids."""

    def __init__(self, graph: Graph, between: list[str]) -> None:
        """graph: of the tokenizer. between: its layers from the split at special tokens to the byte pairs.

        Raises NotUnderstood, and what Graph raises.
        """
        [pattern] = [ascii_pattern(graph.bytes(one, 6).decode()) for one in between if _splits(graph, one)]
        layer = graph.only("BPETokenizer")
        how = graph.attributes(layer)
        if how.get("suffix_indicator") or how.get("end_suffix") or graph.has_input(layer, 18):
            raise NotUnderstood("words with suffixes")
        lefts, rights = _strings(graph, layer, 8), _strings(graph, layer, 11)
        vocabulary = {token: index for index, token in enumerate(_strings(graph, layer, 5))}
        self._merges: dict[tuple[int, int], tuple[int, int]] = {}
        made = set()
        for rank, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            whole = left + right
            made.add(whole)
            self._merges[vocabulary[left], vocabulary[right]] = rank, vocabulary[whole]
        added = set(_strings(graph, layer, 14)) if graph.has_input(layer, 14) else set()
        if any(len(token) > 1 and token not in made and token not in added for token in vocabulary):
            raise NotUnderstood("tokens that no merge makes")  # they would be found before any merge
        self._letters = {chr(token[0]): index for token, index in vocabulary.items() if len(token) == 1}
        self._split = re.compile(pattern, re.ASCII)
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int] | None:
        """The ids of an ASCII text without special tokens; None: better ask the tokenizer."""
        found, known, new, ids = self._split.findall(text), self._words, 0, list[int]()
        if sum(map(len, found)) != len(text):
            return None  # what is between two words is a word to the tokenizer, too
        for word in found:
            tokens = known.get(word)
            if tokens is None:
                new += len(word)
                tokens = self._word(word) if new <= MAX_NEW_LETTERS else None
                if tokens is None:
                    return None
            ids += tokens
        return ids

    def _word(self, word: str) -> list[int] | None:
        """The ids of a new word: the first of the pairs that come first in the list is merged, until none is left."""
        if len(word) > MAX_LETTERS:
            return None
        letters, merges = self._letters, self._merges
        try:
            ids = [letters[letter] for letter in word]
        except KeyError:
            return None
        while len(ids) > 1:
            ranked = [merges.get(pair, _NO_MERGE) for pair in pairwise(ids)]
            best = min(ranked)
            if best is _NO_MERGE:
                break
            place = ranked.index(best)
            ids[place : place + 2] = [best[1]]
        if len(self._words) >= MAX_WORDS:
            self._words.clear()
        self._words[word] = ids
        return ids


def _splits(graph: Graph, layer: str) -> bool:
    """Whether a layer divides a text into words; others must leave ASCII as it is. Raises NotUnderstood."""
    kind, how = graph.kind(layer), graph.attributes(layer)
    if kind == "RegexSplit":
        if (how["behaviour"], how["invert"], how["max_splits"]) == ("isolate", "false", "-1"):
            return True
    elif how.get("normalization_form", "").lower() in _UNICODE_FORMS and "true" not in how.values():
        return False
    raise NotUnderstood(f"{kind} with {how}")


def _strings(graph: Graph, layer: str, port: int) -> list[bytes]:
    """The strings of three inputs from this one on: begins, ends, characters."""
    begins, ends, characters = graph.ints(layer, port), graph.ints(layer, port + 1), graph.bytes(layer, port + 2)
    if len(begins) > 8 * MAX_MERGES or (port == 8 and len(begins) > MAX_MERGES):
        raise NotUnderstood("a large table")
    return [characters[begin:end] for begin, end in zip(begins, ends, strict=True)]


def ascii_pattern(pattern: str) -> str:
    """A pattern of PCRE2 as one of `re` that finds the same in ASCII text. Raises NotUnderstood."""
    parts: list[str] = []
    in_class = False
    for piece in _PIECES.findall(pattern):
        if piece[:2] in ("\\p", "\\P"):
            name = piece[2:].strip("{}")
            if piece[1] == "P" or name not in _CLASSES:
                raise NotUnderstood(f"{piece} in a pattern")
            letters = _CLASSES[name]
            parts.append(letters if in_class else f"[{letters}]" if letters else "(?!)")
            continue
        if piece[0] == "\\" and piece[1] not in _ESCAPES:
            raise NotUnderstood(f"{piece} in a pattern")
        if piece[0] == "[" and in_class:
            raise NotUnderstood("a class in a class")
        if not in_class and _GROUP.search(piece):
            raise NotUnderstood("a group in a pattern")
        in_class = piece[0] == "[" or (in_class and piece != "]")
        parts.append(piece)
    translated = "".join(parts)
    try:
        re.compile(translated, re.ASCII)
    except re.error as error:
        raise NotUnderstood(f"pattern {pattern!r}: {error}") from error
    return translated
