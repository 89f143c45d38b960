"""Flags of other servers about structured output."""

from __future__ import annotations

import json


def library(text: str) -> str:
    """Reads {"backend": "xgrammar"}; other members have no counterpart."""
    config = json.loads(text)
    if set(config) - {"backend"}:
        raise ValueError('{"backend": NAME}')
    return str(config.get("backend", "auto"))
