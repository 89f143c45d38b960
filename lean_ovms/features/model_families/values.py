"""Converts a parameter's bare text to JSON of the type in the tool's schema.

The rules are OVMS's (qwen3coder, minicpm5, onyx): the text of a string parameter is taken as it is, and any other text
is JSON if it is valid, and a string if not. Python's True, False and None are read if the schema allows their types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from .literals import literal_to_json

STRING = frozenset(("string",))
_DEPTH = 8
_KIND_OF = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def kinds_of(schema: Any) -> frozenset[str]:
    """Returns the JSON types that a schema allows; an empty set if it allows all types, or these are not known."""
    return _kinds_of(schema, _DEPTH, {})


def _kinds_of(schema: Any, depth: int, known: dict[int, frozenset[str]]) -> frozenset[str]:
    """Returns the JSON types that a schema allows; an empty set if it allows all types, or these are not known.

    Args:
        schema: The schema.
        depth: The remaining levels of nested schemas to look into.
        known: The results so far by the identities of schemas, since one may be in several places, or in itself.
    """
    if not isinstance(schema, dict) or depth == 0:
        return frozenset()
    if id(schema) not in known:
        known[id(schema)] = frozenset()
        kinds = _declared(schema, depth, known)
        known[id(schema)] = kinds | {"null"} if kinds and schema.get("nullable") is True else kinds
    return known[id(schema)]


def _declared(schema: Mapping[str, Any], depth: int, known: dict[int, frozenset[str]]) -> frozenset[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(k for k in kind if isinstance(k, str))
    for word in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(word), list):
            declared = [_kinds_of(part, depth - 1, known) for part in parts]
            return frozenset[str]().union(*declared) if all(declared) else frozenset()
    if isinstance(parts := schema.get("allOf"), list):
        declared = [kinds for part in parts if (kinds := _kinds_of(part, depth - 1, known))]
        if declared:
            return declared[0].intersection(*declared) or declared[0]
    if isinstance(choices := schema.get("enum"), list):
        return frozenset(_kind(choice) for choice in choices)
    return frozenset((_kind(schema["const"]),)) if "const" in schema else frozenset()


def _kind(value: Any) -> str:
    return _KIND_OF.get(type(value), "null")


def typed(text: str, kinds: frozenset[str], *, python: bool = False) -> str:
    """Converts a parameter's value to JSON text.

    Args:
        text: The value as the model wrote it.
        kinds: The JSON types that the parameter's schema allows; empty if it allows all types, or these are not known.
        python: Whether Python's lists and dicts are read if the types are unknown.
    """
    if kinds == STRING:
        return quoted(text)
    bare = text.strip()
    word = bare.lower()
    if word in ("true", "false") and "boolean" in kinds:
        return word
    if word in ("null", "none") and ("null" in kinds or (kinds and "string" not in kinds)):
        return "null"
    try:
        value = orjson.loads(bare)
    except orjson.JSONDecodeError:
        nested = bool(kinds & {"array", "object"}) or (python and not kinds)
        literal = literal_to_json(bare) if nested and bare[:1] in ("[", "{") else None
        return literal or quoted(text)
    kind = _kind(value)
    fits = not kinds or kind in kinds or (kind == "integer" and "number" in kinds)
    return bare if fits or "string" not in kinds else quoted(text)


def quoted(text: str) -> str:
    """Returns a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)
