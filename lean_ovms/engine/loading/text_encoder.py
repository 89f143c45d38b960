"""Tokenizes prompts exactly as the model's exported tokenizer does, by means of tokenizer.json if it gives the same
ids.

The library `tokenizers` reads tokenizer.json, and works without the interpreter lock. Measured 2026-11 with Qwen2's
151,643 tokens: 0.37 s of CPU time and 82 MB to load, 0.14 ms for a text of 180 tokens.

The tokens of the chat template split a text into segments, each of which is tokenized independently of the others. So
the ids of segments are cached, and only the new part of a conversation is tokenized. While the model is loading, all of
this is compared with the exported tokenizer, and not used if any result differs.
"""

from __future__ import annotations

import logging
import os
import random
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ...errors import NOT_UNICODE, BadRequest, StartError

if TYPE_CHECKING:
    from .graph_tokenizer import GraphTokenizer

log = logging.getLogger(__name__)

LONG_CHARACTERS = 16384
"""The characters outside of the cache from which a text counts as long; fewer take 5 to 20 ms to tokenize."""
MIN_REMEMBERED = 32
"""The fewest characters of a segment that is cached; shorter ones are tokenized as fast."""
MAX_REMEMBERED = 1 << 20
"""The most characters of all cached segments together, which take about 10 MB."""
SAMPLES, SAMPLE_PARTS = 6, 12

Encode = Callable[[str, bool], list[int]]
"""The type of LoadedModel.encode: returns the ids of a text, with or without the special tokens around it."""
FILE = "tokenizer.json"
SAMPLE_TEXTS = (
    "",
    "a",
    " Hello,\tWORLD!\r\n(it's) e-mail@example.com: 3.14 = $5; a^b`c~d_e#f",
    "It's 2026, and  nobody\r\n\n isn't here.\t x_y = 10**3  # \u4e2d\u6587 caf\u00e9 e\u0301 \U0001f600",
    '## ##s antidisestablishmentarianism x86_64 zzzzzzzzzzzzzzzzzzzzqqqqqqqqqq\n\n[x] <y> {z} "q" 1234567890',
    "zzzzqqqqq" * 50,
    " \n" * 50,
)
"""Texts with which tokenizer.json is compared to the model's exported tokenizer."""


class JsonTokenizer:
    """A tokenizer of the library `tokenizers`. It can be used from any thread."""

    def __init__(self, tokenizer: Any) -> None:
        """Wraps a `tokenizers.Tokenizer`."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores are for the network's threads
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.literals = {
            token.content: number
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.content and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        }
        """The added tokens that split a text wherever they occur, with their ids."""

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without the tokens that the model's template puts around it. Raises BadRequest."""
        try:
            found: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:  # the library takes only strings that UTF-8 can express
            raise BadRequest(NOT_UNICODE) from None
        return found

    @overload
    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str: ...

    @overload
    def decode(self, tokens: list[list[int]], skip_special_tokens: bool) -> list[str]: ...

    def decode(self, tokens: list[int] | list[list[int]], skip_special_tokens: bool) -> str | list[str]:
        """Returns the text of a list of ids, or the texts of several lists."""
        if tokens and isinstance(tokens[0], list):
            return list(self._tokenizer.decode_batch(tokens, skip_special_tokens=skip_special_tokens))
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))

    def encode_pair(self, first: str, second: str) -> Any:
        """Returns the library's Encoding of two texts, joined as the model's post-processor does."""
        return self._tokenizer.encode(first, second)

    @classmethod
    def read(cls, model_dir: Path) -> JsonTokenizer | None:
        """Returns the tokenizer of a model's tokenizer.json; None if there is no usable one."""
        file = model_dir / FILE
        if not file.is_file():
            return None
        import tokenizers

        try:
            return cls(tokenizers.Tokenizer.from_file(str(file)))
        except Exception as reason:  # the library raises bare Exceptions
            log.info("%s is not used: %s", FILE, reason)
            return None

    def agrees(self, exported: Callable[[Sequence[str]], list[list[int]]], samples: Sequence[str] = ()) -> bool:
        """Returns whether this gives the same ids as the model's exported tokenizer, for SAMPLE_TEXTS and more samples.

        `exported` returns the ids of each text from that tokenizer, without special tokens.
        """
        texts = [*SAMPLE_TEXTS, *samples]
        for text, ids in zip(texts, exported(texts), strict=True):
            if self.encode(text) != ids:
                log.info("%s is not used: the exported tokenizer gives other ids, for example for %.60r", FILE, text)
                return False
        return True


class _Divider:
    """Finds given tokens in texts; at each place the longest one that matches.

    A regular expression of 6,000 tokens (Gemma) takes half a second to compile, and tries the tokens one by one.
    """

    def __init__(self, literals: Iterable[str] = ()) -> None:
        """Sorts the texts of tokens by their first characters."""
        self._literals = frozenset(literals)
        lengths: dict[str, set[int]] = {}
        for literal in self._literals:
            lengths.setdefault(literal[0], set()).add(len(literal))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]" if lengths else "(?!)")

    def split(self, text: str) -> list[str]:
        """Splits a text at the tokens: even items of the result are the texts between tokens, odd ones the tokens."""
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
    """Tokenizes the prompts of one model."""

    def __init__(
        self, model_dir: Path, exported: Encode, pieces: Sequence[bytes], library: JsonTokenizer | None = None
    ) -> None:
        """Compares the model's two tokenizers, and decides how to use them.

        Args:
            model_dir: The directory of the model, or its file.
            exported: The exported tokenizer in GenAI, which holds the interpreter lock.
            pieces: The bytes of all tokens, from which random samples are made.
            library: The tokenizer of tokenizer.json; None if the model has none.
        """
        self._model_dir, self._exported = model_dir, exported
        framed, plain = exported("a", True), exported("a", False)
        place = next((n for n in range(len(framed)) if framed[n : n + len(plain)] == plain), 0)
        self._frame = framed[:place], framed[place + len(plain) :]
        self._literals: dict[str, int] = {}
        self._divider = _Divider()
        self._known: dict[str, list[int]] = {}
        self._characters = 0
        same = library is not None and library.agrees(self._exported_ids, _samples(pieces, []))
        self._json = library if same else None
        if self._json is not None:
            self._divide_at(self._json.literals, pieces)

    def _exported_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._exported(text, False) for text in texts]

    def _divide_at(self, literals: dict[str, int], pieces: Sequence[bytes]) -> None:
        """Splits texts at these tokens from now on, unless that changes the ids of a sample."""
        self._literals = literals
        self._divider = _Divider(literals)
        samples = _samples(pieces, list(literals))
        if [self(text, False) for text in [*samples, *samples]] != 2 * self._exported_ids(samples):
            log.info("prompts are tokenized as a whole, since their segments would get other ids")
            self._literals, self._divider = {}, _Divider()
            self._known.clear()

    def __call__(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text. Raises BadRequest for a text with unpaired surrogates."""
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
        """The ids of the tokens at which texts are split, among them those that begin messages."""
        return frozenset(self._literals.values())

    def is_long(self, text: str) -> bool:
        """Returns whether encoding a text would take too long between two steps."""
        if len(text) <= LONG_CHARACTERS:
            return False
        if len(text) > MAX_REMEMBERED:
            return True
        unknown = (len(part) for part in self._divider.split(text)[::2] if part not in self._known)
        return sum(unknown) > LONG_CHARACTERS

    def encode(self, text: str, add_special_tokens: bool) -> array[int]:
        """Returns the token ids of a text; meant for another thread, mostly without holding the interpreter lock."""
        if self._json is not None:
            ids = self._json.encode(text)
        elif self._graph is not None:
            [ids] = self._graph.encode([text])
        else:
            return array("i", self._exported(text, add_special_tokens))
        return array("i", self._framed(ids) if add_special_tokens else ids)

    @cached_property
    def _graph(self) -> GraphTokenizer | None:
        """The exported tokenizer for long texts of a model without tokenizer.json, compiled at the first use."""
        from .graph_tokenizer import GraphTokenizer

        try:
            made = GraphTokenizer(self._model_dir)
            same = made.encode(SAMPLE_TEXTS) == self._exported_ids(SAMPLE_TEXTS)
        except (StartError, RuntimeError, OSError) as reason:
            log.info("long texts pause running requests while they are tokenized: %s", reason)
            return None
        return made if same else None

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        """Caches the segments of a text for which `encode` returned these ids."""
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
    """Returns random texts made of the vocabulary's words, blanks and these tokens. They are the same at each call."""
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


def exported_ids(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    """Returns the ids of a text from openvino_genai's tokenizer. Raises BadRequest for unpaired surrogates."""
    try:
        inputs = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except TypeError as error:  # the binding takes only strings that UTF-8 can express
        raise BadRequest(NOT_UNICODE) from error
    ids: list[int] = inputs.input_ids.data.reshape(-1).tolist()
    return ids
