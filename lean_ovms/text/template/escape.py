"""Escape special tokens in the texts of users and tools (--neutralize_special_tokens).

A prompt is tokenized as one text, so "<|im_end|>" in a message becomes the same token that ends messages in the
template, and can forge a role. Here every such text gets a zero-width space (U+200B) after its first character: it
looks the same and is tokenized as ordinary text. Knows no templates, and is given the special texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ...types import Json

ZERO_WIDTH_SPACE = "\u200b"
_TRUSTED = ("system", "developer")
"""Roles whose messages are written by the application."""


class SpecialTokenEscaper:
    """Escapes the texts of special tokens in a conversation. special: the texts of the model's special tokens."""

    def __init__(self, special: Iterable[str]) -> None:
        words = sorted(word for word in set(special) if len(word) > 1)
        # Looks ahead and takes one character, so that texts that overlap are found as well.
        self._pattern = re.compile(f"(?={'|'.join(map(re.escape, words))})(.)", re.DOTALL) if words else None

    def messages(self, messages: list[Json]) -> list[Json]:
        """Returns the conversation with escaped texts, except those of the application. The argument is not changed."""
        return [
            message if message.get("role") in _TRUSTED else self.value(message)  # a role is text of the prompt, too
            for message in messages
        ]

    def value(self, value: Any) -> Any:
        """Returns a JSON value with all its strings and keys escaped."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.value(part) for part in value]
        return value

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(rf"\1{ZERO_WIDTH_SPACE}", text)
