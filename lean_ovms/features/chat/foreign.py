"""Conversations that began at another provider: how a model is shown items that only that provider writes.

Calls and results of the provider's own tools become those of an ordinary tool. Ciphertext, files and base64 images are
left out, since only the provider can use them.
"""

from __future__ import annotations

from typing import Any

import orjson

from ...types import Json

UNSHOWN = frozenset(("cache_control", "caller", "citations", "fingerprint"))
"""The members that no model is shown. Those whose names begin with ENCRYPTED are not shown either."""
ENCRYPTED = "encrypted_"
MOST_SHOWN = 3
"""The most places that are named in a warning."""
NO_RESULT = "The result of this call is not part of the conversation."


def shown(value: Any) -> Any:
    """Removes the parts of a value that a model cannot use: members without a value, ciphertext, and base64."""
    if isinstance(value, dict):
        binary = "data" if value.get("type") == "base64" else ""
        return {
            name: shown(inner)
            for name, inner in value.items()
            if inner is not None and name not in UNSHOWN and name != binary and not name.startswith(ENCRYPTED)
        }
    if isinstance(value, list):
        return list(map(shown, value))
    if isinstance(value, str) and value.startswith("data:") and ";base64," in value[:200]:
        return f"[{value[5:200].partition(';')[0]}]"
    return value


def as_text(value: Any) -> str:
    """Converts a tool's result to text for a model: texts as they are, parts joined, and anything else as JSON."""
    if isinstance(value, str):
        return str(shown(value))
    if isinstance(value, list) and value and all(map(_is_text, value)):
        return "\n".join(part["text"] for part in value)
    return orjson.dumps(shown(value), option=orjson.OPT_NON_STR_KEYS).decode()


def arguments(value: Any) -> Json:
    """Returns the arguments of a call as an object."""
    found: Json = shown(value) if isinstance(value, dict) else {"input": shown(value)}
    return found


def unshown_line(places: list[str], kinds: list[str]) -> list[str]:
    """Returns a warning that items at these paths, of these types, are not shown to the model; [] without items."""
    if not places:
        return []
    more = f" and {len(places) - MOST_SHOWN} more" if len(places) > MOST_SHOWN else ""
    of = ", ".join(sorted(set(kinds)))
    return [
        f"{', '.join(places[:MOST_SHOWN])}{more} ({of}) were left out: only the server that created them can read them"
    ]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
