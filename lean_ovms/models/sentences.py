"""A text in pieces that are spoken one after another: whole sentences where they are not too long. Pure."""

from __future__ import annotations

import re
import unicodedata

SENTENCE = re.compile(r"[.!?…;:]+[\"'”’)\]]*(?=\s)|[。！？；]+[」』”’]*|\n+")
"""Where a sentence ends."""
CLAUSE = re.compile(r"[,、，)–—-]+(?=\s|$)|[、，]+")
SPACE = re.compile(r"\s+")
SHORT = 24
"""A piece of fewer characters takes the next sentence with it: "Dr.", "1.", "Oh!" are no pieces."""


def split(text: str, most: int) -> list[str]:
    """Pieces of at most `most` characters; [] for a text without any character that is visible.

    The text is brought to the normalization form in which tokenizers have it (NFKC), so that a character that becomes
    several counts as several.
    """
    text = unicodedata.normalize("NFKC", text)
    pieces: list[str] = []
    start = 0
    for found in SENTENCE.finditer(text):
        if found.end() - start >= SHORT:
            pieces += _short_enough(text[start : found.end()], most)
            start = found.end()
    pieces += _short_enough(text[start:], most)
    return [piece for piece in pieces if piece]


def _short_enough(text: str, most: int) -> list[str]:
    """A sentence in pieces: at the last clause that fits, or the last space, or anywhere."""
    text = SPACE.sub(" ", text).strip()
    pieces = []
    while len(text) > most:
        end = _last(CLAUSE, text, most) or _last(SPACE, text, most) or most
        pieces.append(text[:end].strip())
        text = text[end:].strip()
    return [*pieces, text]


def _last(pattern: re.Pattern[str], text: str, most: int) -> int:
    """Where the last match in the second half of the first `most` characters ends; 0 if there is none."""
    return max((found.end() for found in pattern.finditer(text, most // 2, most)), default=0)
