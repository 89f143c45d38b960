"""Translates flags of other servers about structured output."""

from __future__ import annotations

import json


def library(text: str) -> str:
    """Returns the backend in a JSON text such as {"backend": "xgrammar"}, and ignores other members."""
    config = json.loads(text)
    if not isinstance(config, dict) or config.keys() - {"backend"}:
        raise ValueError('{"backend": NAME}')
    return str(config.get("backend", "auto"))
