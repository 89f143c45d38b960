"""Ids of stored objects and of items: who knows one was told it."""

from __future__ import annotations

import re
import secrets

_MADE_HERE = re.compile(r"[a-z]+_[0-9a-f]{48}")


def item_id(prefix: str) -> str:
    """Returns a new id that begins with the prefix and has 192 random bits."""
    return f"{prefix}_{secrets.token_hex(24)}"


def is_made_here(given: str) -> bool:
    """Returns whether item_id may have made this id. Only clients that were told such an id know it."""
    return _MADE_HERE.fullmatch(given) is not None
