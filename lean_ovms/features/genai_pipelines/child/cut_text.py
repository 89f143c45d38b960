"""Tokenizes long texts in parts with openvino_genai's tokenizer of a GGUF file."""

from __future__ import annotations

import re
from typing import Any

from ....engine.loading.model_info import encode
from ....errors import BadRequest

MOST_TOKENS = 8192
"""The tokens of a text that the tokenizer returns."""
_BREAK = re.compile(r"\S\n\S")


def encode_cut(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    """Encodes a text with a tokenizer that silently drops all but the last 8192 tokens.

    Longer texts are tokenized in parts. A part ends after a line break between two characters that are not blank, where
    the pre-tokenizers of all these models split anyway. Raises BadRequest for a text without such places.
    """
    ids = encode(tokenizer, text, add_special_tokens)
    if len(ids) < MOST_TOKENS:
        return ids
    breaks = [found.end() - 1 for found in _BREAK.finditer(text)]
    if not breaks:
        raise BadRequest(f"this model cannot tokenize texts with {MOST_TOKENS} tokens or more without a line break")
    middle = min(breaks, key=lambda place: abs(place - len(text) // 2))
    head, tail = text[:middle], text[middle:]
    return encode_cut(tokenizer, head, add_special_tokens) + encode_cut(tokenizer, tail, False)
