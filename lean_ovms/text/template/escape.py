"""Taking the power out of special tokens in what users and tools say (--neutralize_special_tokens).

A prompt is tokenized as one text, so "<|im_end|>" in a message becomes the same token that ends messages in the
template, and can forge a role. Here every such text gets a zero-width space (U+200B) behind its first character: it
reads the same and is tokenized as ordinary text. It must not know templates, nor which texts are special.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ...types import Json

BREAK = "\u200b"
_TRUSTED = ("system", "developer")
"""Roles whose messages are the application's own words."""


class SpecialTokenEscaper:
    """special: the texts of the model's special tokens."""

    def __init__(self, special: Iterable[str]) -> None:
        words = sorted(word for word in set(special) if len(word) > 1)
        # Looks ahead and takes one character, so that texts that overlap are found as well.
        self._first = re.compile(f"(?={'|'.join(map(re.escape, words))})(.)", re.DOTALL) if words else None

    def messages(self, messages: list[Json]) -> list[Json]:
        """The conversation with harmless texts, but for those of the application; what is given is not changed."""
        return [
            message if message.get("role") in _TRUSTED else self.value(message)  # a role is text of the prompt, too
            for message in messages
        ]

    def value(self, value: Any) -> Any:
        """Any JSON value with harmless texts and names."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.value(part) for part in value]
        return value

    def text(self, text: str) -> str:
        """One text. Twice the same as once."""
        return text if self._first is None else self._first.sub(rf"\1{BREAK}", text)
