"""Reads prompts: a text, token ids, a mixture of both, an object with such a prompt, or several of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ...api.generation.sampling import token_ids
from ...api.schemas import SOME_TEXT, STRING, TOKENS, any_of, array, object_of
from ...errors import BadRequest
from ...types import TextPrompt, TokenPrompt
from ...types.engine import Vocabulary

Encode = Callable[[list[str], bool], Awaitable[list[list[int]]]]
"""The type of a function from texts, and whether the tokenizer adds special tokens, to the token ids of each text."""
Pieces = list[str | list[int]]
"""The type of one prompt, which consists of texts and of token ids between them."""
IN_OBJECT = "prompt_string"
"""llama.cpp's key of the prompt in an object."""
MAX_TEXTS = 2048
"""The most texts in one mixed prompt."""
INLINE_CUT = 1 << 14
"""The characters below which a text is cut on the event loop, in at most 15 ms. A million take up to 1 s (2026-11)."""
_PIECE = any_of(STRING, TOKENS["items"])
MIXED = any_of(STRING, array(_PIECE))
"""The JSON Schema of one prompt, which may be empty."""
_ONE = any_of(SOME_TEXT, array(_PIECE, 1))
SEVERAL = any_of(
    SOME_TEXT,
    array(_PIECE) | {"contains": {"type": "number"}},
    array(any_of(_ONE, object_of({IN_OBJECT: _ONE}, multimodal_data=False)), 1),
)


def read_several(value: Any, limit: int, param: str) -> list[Pieces]:
    """Reads every prompt of a field; an array with a number in it is one prompt.

    Args:
        value: The field's value.
        limit: The most prompts that are allowed.
        param: The field's name, for errors.

    Returns:
        The pieces of each prompt, which are texts and lists of token ids.

    Raises:
        BadRequest: There is no prompt, there are too many, or one is not valid.
    """
    if not isinstance(value, list) or any(type(item) in (int, float) for item in value):
        return [read_one(value, param)]
    if not value or len(value) > limit:
        raise BadRequest(f"{param} must have 1 to {limit} entries, not {len(value)}", param=param)
    return [read_one(item, f"{param}[{i}]") for i, item in enumerate(value)]


def read_one(value: Any, param: str) -> Pieces:
    """Reads the pieces of one prompt, which may not be empty. Raises BadRequest."""
    if isinstance(value, dict) and "multimodal_data" not in value:
        value = value.get(IN_OBJECT)
    if isinstance(value, str) and value:
        return [value]
    if not isinstance(value, list) or not value:
        raise BadRequest(
            f"{param} must be a non-empty string, or a non-empty array of token ids and strings", param=param
        )
    if sum(isinstance(item, str) for item in value) > MAX_TEXTS:
        raise BadRequest(f"{param} has more than {MAX_TEXTS} strings", param=param)
    pieces: Pieces = []
    for item in value:
        if isinstance(item, str):
            pieces.append(item)
        elif pieces and isinstance(pieces[-1], list):
            pieces[-1].append(item)
        else:
            pieces.append([item])
    for piece in pieces:
        if isinstance(piece, list):
            token_ids(piece, param)
    return pieces


def special_texts(vocabulary: Vocabulary) -> set[str]:
    """Returns the texts of the special tokens that have more than one character."""
    pieces, special = vocabulary.pieces, vocabulary.special
    texts = (pieces[token].decode("utf-8", "replace") for token in special if token < len(pieces))
    return {text for text in texts if len(text) > 1}


class TextCutter:
    """Cuts texts so that a tokenizer reads the texts of special tokens in them as any other text.

    Vocabularies have up to thousands of special tokens that begin alike, so a text is not searched for each of them.
    """

    def __init__(self, special: Iterable[str]) -> None:
        """Keeps the texts of special tokens, of at least two characters each."""
        self._special = frozenset(special)
        self._lengths: dict[str, set[int]] = {}  # by the first two characters
        for text in self._special:
            self._lengths.setdefault(text[:2], set()).add(len(text))

    def cut(self, text: str, most: int) -> list[str]:
        """Cuts a text behind the first character of each special token in it; a text of over `most` pieces is not cut.

        The time is linear in the length of the text.
        """
        ends = []
        for start, lengths in self._lengths.items():
            at = text.find(start)
            while at >= 0:
                if any(text[at : at + length] in self._special for length in lengths):
                    ends.append(at + 1)
                    if len(ends) >= most:
                        return [text]
                at = text.find(start, at + 1)
        ends.sort()
        return [text[first:end] for first, end in zip([0, *ends], [*ends, len(text)], strict=True)]


async def tokens_of(pieces: Pieces, special: bool, encode: Encode) -> list[int]:
    """Returns the token ids of the pieces.

    Args:
        pieces: Texts and lists of token ids.
        special: Whether the tokenizer adds special tokens to a text at the start.
        encode: Returns the token ids of each of several texts, with or without special tokens.

    Raises:
        RequestError: A text cannot be tokenized.
    """
    texts = [piece for piece in pieces if isinstance(piece, str)]
    first, rest = (texts[:1], texts[1:]) if special and isinstance(pieces[0], str) else ([], texts)
    encoded = await encode(first, True) if first else []
    encoded += await encode(rest, False) if rest else []
    left = iter(encoded)
    return [token for piece in pieces for token in (next(left) if isinstance(piece, str) else piece)]


async def prompt_of(pieces: Pieces, encode: Encode) -> TextPrompt | TokenPrompt:
    """Returns the prompt for the engine. Raises RequestError."""
    [first, *more] = pieces
    if not more:
        return TextPrompt(first) if isinstance(first, str) else TokenPrompt(first)
    return TokenPrompt(await tokens_of(pieces, True, encode))
