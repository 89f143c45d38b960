"""Decodes base64 as clients write it, by the URL standard's rules: with blanks, percent-encoded, padded or not."""

from __future__ import annotations

from base64 import b64decode
from urllib.parse import unquote_to_bytes

_BLANKS = b" \t\r\n\f"
_MARK = ";base64,"
_MAX_HEAD = 256
"""Characters of a data URL before its data."""


def where_data_begins(text: str) -> int:
    """Returns the offset after the head of a base64 data URL, or 0 if the text has no such head."""
    head, mark, _ = text[:_MAX_HEAD].lower().partition(_MARK)
    return len(head) + len(mark) if mark else 0


def decode_base64(text: bytes) -> bytes:
    """Decodes base64 text (https://infra.spec.whatwg.org/#forgiving-base64-decode).

    Raises ValueError for any other text, including the URL-safe alphabet (- and _).
    """
    if b"%" in text:
        text = unquote_to_bytes(text)
    text = text.translate(None, _BLANKS)
    if text.startswith(b"="):  # Python 3.10 decodes this to empty bytes
        raise ValueError("padding of nothing")
    if not text.endswith(b"="):
        text += b"=" * (-len(text) % 4)
    return b64decode(text, validate=True)
