"""Prompts to ids: exactly what the model's exported tokenizer says, by tokenizer.json where it is the same.

The tokens of the chat template divide a text into segments, each of which is tokenized regardless of the others. So
the ids of segments are remembered, and of a conversation only what is new is tokenized. While the model loads, all of
this is compared with the exported tokenizer, and not used if anything differs.
"""

from __future__ import annotations

import logging
import random
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StartError
from . import json_tokenizer
from .json_tokenizer import JsonTokenizer

if TYPE_CHECKING:
    from .graph_tokenizer import GraphTokenizer

log = logging.getLogger(__name__)

LONG_CHARACTERS = 16384
"""Characters of a text whose ids are not known: tokenizing fewer on the step loop takes 5 to 20 ms."""
MIN_REMEMBERED = 32
"""Characters of a segment; shorter ones are tokenized as fast."""
MAX_REMEMBERED = 1 << 20
"""Characters of all remembered segments: about 10 MB."""
SAMPLES, SAMPLE_PARTS = 6, 12

Encode = Callable[[str, bool], list[int]]
"""A function as LoadedModel.encode: it returns the ids of a text, with or without the tokens that a template puts
around it."""


class _Divider:
    """Finds tokens in texts, at each place the longest one.

    A regular expression of 6,000 tokens (Gemma) takes half a second to compile, and tries them one by one.
    """

    def __init__(self, literals: Iterable[str] = ()) -> None:
        """Sorts the tokens by their first characters.

        Args:
            literals: The texts of the tokens.
        """
        self._literals = frozenset(literals)
        lengths: dict[str, set[int]] = {}
        for literal in self._literals:
            lengths.setdefault(literal[0], set()).add(len(literal))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]" if lengths else "(?!)")

    def split(self, text: str) -> list[str]:
        """Returns what is between tokens in the even places, and the tokens in the others."""
        parts: list[str] = []
        start = place = 0
        while (found := self._first.search(text, place)) is not None:
            place = found.start()
            cuts = (text[place : place + length] for length in self._lengths[text[place]])
            literal = next((cut for cut in cuts if cut in self._literals), "")
            if literal:
                parts += text[start:place], literal
                start = place + len(literal)
            place += len(literal) or 1
        return [*parts, text[start:]]


class TextEncoder:
    """The prompts of one model."""

    def __init__(
        self, model_dir: Path, exported: Encode, pieces: Sequence[bytes], library: JsonTokenizer | None = None
    ) -> None:
        """Compares the model's two tokenizers.

        Args:
            model_dir: The directory of the model, or its file.
            exported: GenAI's tokenizer, which holds the interpreter's lock.
            pieces: The bytes of its tokens, for samples.
            library: The model's tokenizer by the library `tokenizers`; None: it has none.
        """
        self._model_dir, self._exported = model_dir, exported
        framed, plain = exported("a", True), exported("a", False)
        place = next((n for n in range(len(framed)) if framed[n : n + len(plain)] == plain), 0)
        self._frame = framed[:place], framed[place + len(plain) :]
        self._literals: dict[str, int] = {}
        self._divider = _Divider()
        self._known: dict[str, list[int]] = {}
        self._characters = 0
        same = library is not None and json_tokenizer.agrees(library, self._exported_ids, _samples(pieces, []))
        self._json = library if same else None
        if self._json is not None:
            self._divide_at(self._json.literals, pieces)

    def _exported_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._exported(text, False) for text in texts]

    def _divide_at(self, literals: dict[str, int], pieces: Sequence[bytes]) -> None:
        """Lets these tokens divide texts into segments, unless that changes any ids."""
        self._literals = literals
        self._divider = _Divider(literals)
        samples = _samples(pieces, list(literals))
        if [self(text, False) for text in [*samples, *samples]] != 2 * self._exported_ids(samples):
            log.info("prompts are tokenized whole: their segments have other ids")
            self._literals, self._divider = {}, _Divider()
            self._known.clear()

    def __call__(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encodes as LoadedModel.encode does."""
        if self._json is None:
            return self._exported(text, add_special_tokens)
        parts = self._divider.split(text)
        ids = list(self._segment(self._json, parts[0]))
        for literal, part in zip(parts[1::2], parts[2::2], strict=True):
            ids.append(self._literals[literal])
            ids += self._segment(self._json, part)
        return self._framed(ids) if add_special_tokens else ids

    @property
    def dividers(self) -> frozenset[int]:
        """The tokens between which texts are tokenized by themselves, among them those that messages begin with."""
        return frozenset(self._literals.values())

    def is_long(self, text: str) -> bool:
        """Returns whether a call would take too long between two steps."""
        if len(text) <= LONG_CHARACTERS:
            return False
        if len(text) > MAX_REMEMBERED:
            return True
        unknown = (len(part) for part in self._divider.split(text)[::2] if part not in self._known)
        return sum(unknown) > LONG_CHARACTERS

    def encode(self, text: str, add_special_tokens: bool) -> array[int]:
        """Encodes as LoadedModel.encode does, in another thread and mostly without the interpreter's lock."""
        if self._json is not None:
            ids = self._json.encode(text)
        elif self._graph is not None:
            [ids] = self._graph.encode([text])
        else:
            return array("i", self._exported(text, add_special_tokens))
        return array("i", self._framed(ids) if add_special_tokens else ids)

    @cached_property
    def _graph(self) -> GraphTokenizer | None:
        """The exported tokenizer for the long texts of a model without tokenizer.json, compiled for the first one."""
        from .graph_tokenizer import GraphTokenizer

        try:
            made = GraphTokenizer(self._model_dir)
            same = made.encode(json_tokenizer.SAMPLES) == self._exported_ids(json_tokenizer.SAMPLES)
        except (StartError, RuntimeError, OSError) as reason:
            log.info("long texts keep the step loop waiting: %s", reason)
            return None
        return made if same else None

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        """Remembers the segments of a text that `encode` returned these ids of."""
        if len(text) > MAX_REMEMBERED or not self._literals:
            return
        before, after = map(len, self._frame) if add_special_tokens else (0, 0)
        parts, start, end = self._divider.split(text), before, len(ids) - after
        for part, literal in zip(parts[::2], parts[1::2], strict=False):
            stop = ids.index(self._literals[literal], start, end)
            self._remember(part, ids[start:stop])
            start = stop + 1
        self._remember(parts[-1], ids[start:end])

    def _segment(self, tokenizer: JsonTokenizer, text: str) -> list[int]:
        if not text:
            return []
        found = self._known.get(text)
        return found if found is not None else self._remember(text, tokenizer.encode(text))

    def _remember(self, text: str, ids: list[int]) -> list[int]:
        if self._literals and MIN_REMEMBERED <= len(text) <= MAX_REMEMBERED // 4:
            self._characters += len(text)
            if self._characters > MAX_REMEMBERED:
                self._known.clear()
                self._characters = len(text)
            self._known[text] = ids
        return ids

    def _framed(self, ids: list[int]) -> list[int]:
        return [*self._frame[0], *ids, *self._frame[1]]


def _samples(pieces: Sequence[bytes], literals: Sequence[str]) -> list[str]:
    """Returns random texts of the vocabulary's words, of blanks and of these tokens: always the same ones."""
    dice = random.Random(0)
    words = [piece.decode("utf-8", "ignore") for piece in dice.choices(pieces, k=200) if piece] or ["a"]
    words = [word for word in words if word not in literals]
    blanks = [" ", "  ", "\n", "\n\n ", "\t", "\r\n", "'s", "don't", "12345", "...", "e\u0301", "\u4e2d\u6587"]
    texts: list[str] = []
    for number in range(SAMPLES):
        parts = dice.choices(words or ["a"], k=SAMPLE_PARTS) + dice.choices(blanks, k=SAMPLE_PARTS)
        parts += dice.choices(literals, k=3) if literals else []
        parts += [chr(dice.randrange(32, 127)) for _ in range(SAMPLE_PARTS)]
        dice.shuffle(parts)
        text = "".join(parts)
        texts.append(text if number < 2 else text.encode("ascii", "ignore").decode())
    return texts
