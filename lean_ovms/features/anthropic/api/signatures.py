"""The signatures of thinking blocks.

Clients return a block with its signature and do not read it. With `display: omitted` it contains the reasoning, as
Anthropic's does: the text comes back with the next turn, for templates that render it, and the prefix cache.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

MAX_SIGNATURE = 1 << 21
"""The most characters of a signature that are read, for 1.5 MB of reasoning; longer ones would hold the interpreter."""
OMITTED = b"omitted:"
"""The beginning of a signature that contains its text, before it is written in base64."""


def signature(text: str, *, omitted: bool) -> str:
    """Returns the signature of a reasoning: the text itself if the block omits it, or else its hash."""
    data = text.encode("utf-8", "replace")
    return b64encode(OMITTED + data if omitted else hashlib.sha256(data).digest()).decode()


def omitted_text(found: object) -> str:
    """Returns the reasoning in the signature of a block without text; "" if it has none, as at another server."""
    try:
        data = b64decode(found, validate=True) if isinstance(found, str) and len(found) <= MAX_SIGNATURE else b""
    except ValueError:
        return ""
    return data.removeprefix(OMITTED).decode("utf-8", "replace") if data.startswith(OMITTED) else ""
