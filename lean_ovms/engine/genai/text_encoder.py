"""Texts to ids: exactly what the model's tokenizer says, asked as little as possible.

Special tokens divide a text into segments, each of which is tokenized regardless of the others. So the ids of segments
are remembered, and of a conversation only what is new is tokenized: by byte_pairs where they can, else by the
tokenizer. While the model loads both are compared with the tokenizer, and not used if anything differs.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree.ElementTree import ParseError

from .byte_pairs import BytePairs
from .ir import Graph, NotUnderstood

log = logging.getLogger(__name__)

TOKENIZER = "openvino_tokenizer"
MIN_REMEMBERED = 32
"""Characters of a segment; byte_pairs are as fast with shorter ones."""
MAX_REMEMBERED = 1 << 20
"""Characters of all remembered segments: about 10 MB."""
SAMPLES, SAMPLE_PARTS = 6, 12
_CHARACTERS = {
    "BPETokenizer": 4,
    "BytesToChars": 4,
    "CaseFold": 2,
    "CharsMapNormalization": 2,
    "NormalizeUnicode": 2,
    "RegexNormalization": 2,
    "RegexSplit": 4,
}
"""The input for characters of each operator that treats a segment regardless of the others."""
LITERALS = re.compile(r"\((?:[^\\^$.|?*+()\[\]{}]|\\[^A-Za-z0-9]|\|)+\)")

Encode = Callable[[str, bool], list[int]]
"""As pipeline.Pipeline.encode."""


def make(model_dir: Path, ask: Encode, pieces: Sequence[bytes]) -> Encode:
    """The fastest exact encoder of a model. ask: its tokenizer. pieces: the texts of its tokens, for samples."""
    try:
        encoder = TextEncoder(Graph(model_dir / f"{TOKENIZER}.xml"), ask)
    except (NotUnderstood, OSError, ParseError, ValueError, KeyError, IndexError) as reason:
        log.debug("every text goes to the tokenizer: %s", reason)
        return ask
    if not encoder.agrees(pieces):
        log.info("every text goes to the tokenizer: its graph was not understood")
        return ask
    return encoder


class TextEncoder:
    """The segments of one model's texts."""

    def __init__(self, graph: Graph, ask: Encode) -> None:
        """Raises NotUnderstood, and what Graph raises."""
        split, between = _chain(graph)
        pattern = graph.bytes(split, 5).decode()
        if not LITERALS.fullmatch(pattern):
            raise NotUnderstood(f"special tokens {pattern!r}")
        self._special = re.compile(pattern)
        literals = [re.sub(r"\\(.)", r"\1", text) for text in re.split(r"(?<!\\)\|", pattern[1:-1])]
        ids = ask("".join(literals), False)
        if len(ids) != len(literals):
            raise NotUnderstood("special tokens of more than one id")
        self._special_ids = dict(zip(literals, ids, strict=True))
        self._ask = ask
        self._limit = token_limit(graph)
        self._known: dict[str, list[int]] = {}
        self._characters = 0
        framed, letter = ask("a", True), ask("a", False)
        place = next((n for n in range(len(framed)) if framed[n : n + len(letter)] == letter), 0)
        self._frame = framed[:place], framed[place + len(letter) :]
        try:
            self._pairs: BytePairs | None = BytePairs(graph, between)
        except (NotUnderstood, ValueError, KeyError) as reason:
            log.debug("the tokenizer has no table of pairs: %s", reason)
            self._pairs = None

    def unknown(self, text: str) -> int:
        """How many characters of a text the tokenizer would be asked for."""
        if len(text) > MAX_REMEMBERED:
            return len(text)
        parts = self._special.split(text)[::2]
        known = [self._known.get(part) for part in parts]
        if sum(len(ids) for ids in known if ids is not None) >= self._limit:
            return len(text)
        return sum(len(part) for part, ids in zip(parts, known, strict=True) if ids is None)

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        """Remember the segments of a text with these ids."""
        if len(text) > MAX_REMEMBERED or len(ids) >= self._limit:
            return
        before, after = map(len, self._frame) if add_special_tokens else (0, 0)
        self._divided(self._special.split(text), ids[before : len(ids) - after])

    def __call__(self, text: str, add_special_tokens: bool) -> list[int]:
        """As pipeline.Pipeline.encode."""
        parts = self._special.split(text)
        segments = [self._segment(part) for part in parts[::2]]
        unknown = [place for place, found in enumerate(segments) if found is None]
        if len(unknown) == 1:
            part = parts[2 * unknown[0]]
            segments[unknown[0]] = self._remember(part, self._ask(part, False))
        elif unknown:
            segments = self._divided(parts, self._ask(text, False))
        ids = self._joined(segments, parts[1::2])
        if len(ids) >= self._limit:
            return self._ask(text, add_special_tokens)
        return [*self._frame[0], *ids, *self._frame[1]] if add_special_tokens else ids

    def _segment(self, text: str) -> list[int] | None:
        """The ids of a segment, if they can be known without the tokenizer."""
        if not text:
            return []
        found = self._known.get(text)
        if found is None and self._pairs is not None and text.isascii():
            found = self._pairs.encode(text)
            if found is not None:
                self._remember(text, found)
        return found

    def _divided(self, parts: list[str], ids: list[int]) -> list[list[int] | None]:
        """The ids of each segment of a text, from those of the whole text."""
        segments: list[list[int] | None] = []
        start = 0
        for part, special in zip(parts[::2], parts[1::2], strict=False):
            end = ids.index(self._special_ids[special], start)
            segments.append(self._remember(part, ids[start:end]))
            start = end + 1
        segments.append(self._remember(parts[-1], ids[start:]))
        return segments

    def _joined(self, segments: list[list[int] | None], special: list[str]) -> list[int]:
        ids = list(segments[0] or ())
        for token, segment in zip(special, segments[1:], strict=True):
            ids.append(self._special_ids[token])
            ids += segment or ()
        return ids

    def _remember(self, text: str, ids: list[int]) -> list[int]:
        if MIN_REMEMBERED <= len(text) <= MAX_REMEMBERED // 4:
            self._characters += len(text)
            if self._characters > MAX_REMEMBERED:
                self._known.clear()
                self._characters = len(text)
            self._known[text] = ids
        return ids

    def agrees(self, pieces: Sequence[bytes]) -> bool:
        """Whether random texts have the tokenizer's own ids, also when they are tokenized for the second time."""
        dice = random.Random(0)
        words = [piece.decode("utf-8", "ignore") for piece in dice.choices(pieces, k=200) if piece] or ["a"]
        blanks = [" ", "  ", "\n", "\n\n ", "\t", "\r\n", "'s", "don't", "12345", "...", "e\u0301", "\u4e2d\u6587"]
        special = list(self._special_ids)
        for number in range(SAMPLES):
            special_too = number % 3 == 0
            parts = dice.choices(words, k=SAMPLE_PARTS) + dice.choices(blanks, k=SAMPLE_PARTS)
            parts += dice.choices(special, k=3) + [chr(dice.randrange(32, 127)) for _ in range(SAMPLE_PARTS)]
            dice.shuffle(parts)
            text = "".join(parts)
            if number >= 2:
                text = text.encode("ascii", "ignore").decode()
            expected = self._ask(text, special_too)
            if any(self(text, special_too) != expected for _ in range(2)):
                return False
        return True


def _chain(graph: Graph) -> tuple[str, list[str]]:
    """The split at special tokens, and the layers from it to the byte pairs. Raises NotUnderstood for other forms."""
    layer, between = graph.only("BPETokenizer"), []
    while (kind := graph.kind(layer)) != "SpecialTokensSplit":
        if kind not in _CHARACTERS:
            raise NotUnderstood(f"{kind} in a tokenizer")
        between.append(layer)
        layer = graph.source(layer, _CHARACTERS[kind])
    if graph.source_kind(layer, 4) != "StringTensorUnpack":
        raise NotUnderstood("something comes before the special tokens")
    return layer, between[1:]


def token_limit(graph: Graph) -> int:
    """Ids beyond which the tokenizer may cut a text."""
    layer = graph.only("Truncate")
    source = graph.source(layer, 3)
    if graph.kind(source) != "Select":
        return graph.ints(layer, 3)[0]
    return min(graph.ints(source, 1)[0], graph.ints(source, 2)[0])
