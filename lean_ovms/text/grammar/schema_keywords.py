"""Read the keywords of a JSON schema, one at a time. Each function raises GrammarInvalid for an invalid value."""

from __future__ import annotations

from typing import Any

from ...errors import GrammarInvalid
from ...types import Json

Schema = Any

KIND_OF_KEYWORD = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
ANNOTATIONS = ("description", "title", "default", "examples", "$defs", "definitions", "$schema", "$id", "$comment")
UNSUPPORTED = (
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "patternProperties",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "multipleOf",
)
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def without(schema: Json, *words: str) -> Json:
    """The schema less these keywords."""
    return {key: value for key, value in schema.items() if key not in words}


def schemas(schema: Json, word: str) -> list[Schema]:
    """The schemas in a list like anyOf's."""
    parts = schema[word]
    if not isinstance(parts, list) or not parts:
        raise GrammarInvalid(f"{word} is not a list with schemas")
    return parts


def types_of(schema: Json) -> list[str]:
    """The types that a schema names; none: any."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [] if kind is None else [kind]
    for one in kinds:
        if one not in TYPES:
            raise GrammarInvalid(f"{one!r} is not a type"[:80])
    return list(dict.fromkeys(kinds))


def kinds_of(schema: Json) -> list[str]:
    """The types of the values that a grammar of the schema has; none: any.

    A schema that names no type has those that its keywords are about.
    """
    kinds = types_of(schema) or [k for k, words in KIND_OF_KEYWORD.items() if any(w in schema for w in words)]
    return [*kinds, "null"] if schema.get("nullable") is True and "null" not in kinds else kinds


def excluded_texts(schema: Json) -> list[str] | None:
    """What `not` excludes from the strings of a schema, if it is nothing but a list of texts."""
    other = schema.get("not")
    if not isinstance(other, dict) or len(other) != 1 or not ({"enum", "const"} & set(other)):
        return None
    words = other.get("enum", [other.get("const")])
    fitting = isinstance(words, list) and all(isinstance(word, str) for word in words)
    free = not any(word in schema for word in ("pattern", "format", "minLength", "maxLength"))
    return words if fitting and free else None


def has_type(value: Any, kind: str) -> bool:
    """Whether a value has that type."""
    if kind in ("number", "integer"):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and (kind == "number" or value == int(value))
    types: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])


def bound(schema: Json, word: str) -> float | None:
    """A bound of numbers; None: there is none, or none that is relevant."""
    value = schema.get(word)
    if isinstance(value, bool):
        return None  # draft 4's exclusiveMinimum
    if value is not None and not isinstance(value, (int, float)):
        raise GrammarInvalid(f"{word} is not a number")
    if value is not None and abs(value) > 1e15:
        return None  # beyond every number that the grammar allows
    return value


def count(schema: Json, word: str) -> int | None:
    """A bound of lengths; None: there is none."""
    value = schema.get(word)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value):
        raise GrammarInvalid(f"{word} is not a count")
    return int(value)


def properties_of(schema: Json) -> tuple[dict[str, Schema], list[str]]:
    """The schemas of an object's properties, and the names that are required."""
    properties, needed = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise GrammarInvalid("properties is not an object")
    if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
        raise GrammarInvalid("required is not a list of strings")
    return properties, needed


def items_of(schema: Json) -> tuple[list[Schema], Schema]:
    """The schemas of an array's first items, and that of all others."""
    first, items = schema.get("prefixItems", []), schema.get("items", True)
    if isinstance(items, list):  # before draft 2020-12
        first, items = items, schema.get("additionalItems", True)
    if not isinstance(first, list):
        raise GrammarInvalid("prefixItems is not a list")
    return first, items


def number_bounds(schema: Json, step: float) -> tuple[float | None, float | None, float | None, float | None]:
    """minimum and maximum with the exclusive bounds applied, then exclusiveMinimum and exclusiveMaximum.

    step: the distance of an excluded bound to the next value; 0: the bound is included.
    """
    low, high = bound(schema, "minimum"), bound(schema, "maximum")
    above, below = bound(schema, "exclusiveMinimum"), bound(schema, "exclusiveMaximum")
    if above is not None:
        low = _larger(low, above + step if step and above == int(above) else above)
    if below is not None:
        high = -_larger(None if high is None else -high, -(below - step if step and below == int(below) else below))
    return low, high, above, below


def _larger(one: float | None, other: float) -> float:
    return other if one is None else max(one, other)


def has_no_effect(word: str, value: Any) -> bool:
    """Whether a keyword is present with a value that requires nothing."""
    return value is None or value is False or value == {} or (word == "multipleOf" and value in (1, 1.0))
