"""Base64 as clients write it: with blanks, percent-encoded, with or without padding, as the URL standard reads it."""

from __future__ import annotations

from base64 import b64decode
from urllib.parse import unquote_to_bytes

_BLANKS = b" \t\r\n\f"
_MARK = ";base64,"
_MAX_HEAD = 256
"""Characters of a data URL before its data."""


def where_data_begins(text: str) -> int:
    """Returns the place behind the head of a data URL in base64; 0: the text has no such head."""
    head, mark, _ = text[:_MAX_HEAD].lower().partition(_MARK)
    return len(head) + len(mark) if mark else 0


def decode_base64(text: bytes) -> bytes:
    """Returns the bytes of base64 text (https://infra.spec.whatwg.org/#forgiving-base64-decode).

    Raises ValueError for any other text, so for the alphabet of file names (- and _), too.
    """
    if b"%" in text:
        text = unquote_to_bytes(text)
    text = text.translate(None, _BLANKS)
    if text.startswith(b"="):  # which Python 3.10 takes for no bytes
        raise ValueError("padding of nothing")
    if not text.endswith(b"="):
        text += b"=" * (-len(text) % 4)
    return b64decode(text, validate=True)
