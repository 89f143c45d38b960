"""Whether a JSON value is valid by a JSON schema, as far as that is known for certain."""

from __future__ import annotations

import contextlib
from typing import Any

from ...errors import GrammarInvalid
from .schema_keywords import ANNOTATIONS, Schema, has_no_effect, has_type, items_of, properties_of, types_of, without
from .schema_merge import Root, resolve_reference

MAX_DEPTH = 16
_KNOWN = frozenset(
    (
        *("$ref", "type", "const", "enum", "allOf", "anyOf", "oneOf", "not", "nullable"),
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", *ANNOTATIONS),
    )
)
Verdict = bool | None
"""None: unknown."""


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1 is 1.0, and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return type(one) is type(other) and bool(one == other)


def among(value: Any, choices: list[Any]) -> bool:
    """Whether one of these is the same value. What is the same is equal, which the list finds sooner."""
    at = -1
    with contextlib.suppress(ValueError):
        while True:
            at = choices.index(value, at + 1)
            if same(choices[at], value):
                return True
    return False


def allows(schema: Schema, value: Any, root: Root, depth: int = 0) -> Verdict:
    """Raises GrammarInvalid for a schema that is wrong."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    known = all(word in _KNOWN or has_no_effect(word, held) for word, held in schema.items())
    verdicts = [*_combined(schema, value, root, depth + 1), _scalar(schema, value), None if not known else True]
    if isinstance(value, dict):
        verdicts += _members(schema, value, root, depth + 1)
    if isinstance(value, list):
        verdicts += _items(schema, value, root, depth + 1)
    return _all(verdicts)


def allows_each(schema: Schema, values: list[Any], root: Root) -> list[Verdict]:
    """`allows` for each of these. Where the schema lists texts, or excludes a list, they are searched as a set."""
    if (texts := _listed(schema)) is not None:
        return [isinstance(value, str) and value in texts for value in values]
    if isinstance(schema, dict) and schema.keys() == {"not"} and (texts := _listed(schema["not"])) is not None:
        return [not (isinstance(value, str) and value in texts) for value in values]
    return [allows(schema, value, root) for value in values]


def _listed(schema: Any) -> frozenset[str] | None:
    """The texts of a schema that allows nothing else, and says no more."""
    if not isinstance(schema, dict) or without(schema, "type", "enum", *ANNOTATIONS):
        return None
    texts = schema.get("enum")
    if schema.get("type", "string") != "string" or not isinstance(texts, list):
        return None
    return frozenset(texts) if all(isinstance(text, str) for text in texts) else None


def _all(verdicts: list[Verdict]) -> Verdict:
    return False if False in verdicts else None if None in verdicts else True


def _combined(schema: dict[str, Any], value: Any, root: Root, depth: int) -> list[Verdict]:
    found: list[Verdict] = []
    if isinstance(reference := schema.get("$ref"), str):
        found.append(allows(resolve_reference(root, reference), value, root, depth))
    if "const" in schema:
        found.append(same(schema["const"], value))
    if isinstance(choices := schema.get("enum"), list):
        found.append(among(value, choices))
    if "not" in schema:
        inside = allows(schema["not"], value, root, depth)
        found.append(None if inside is None else not inside)
    for word in ("allOf", "anyOf", "oneOf"):
        if isinstance(parts := schema.get(word), list):
            each = [allows(part, value, root, depth) for part in parts]
            right, unknown = each.count(True), each.count(None)
            if word == "allOf":
                found.append(_all(each))
            elif word == "anyOf":
                found.append(True if right else None if unknown else False)
            else:
                found.append(False if right > 1 else None if unknown else right == 1)
    return found


def _scalar(schema: dict[str, Any], value: Any) -> Verdict:
    kinds = types_of(schema)
    if kinds and not any(has_type(value, kind) for kind in kinds):
        return None if value is None and schema.get("nullable") is True else False
    if isinstance(value, str):
        return _between(schema, len(value), "Length")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
        outside = (above is not None and value <= above) or (below is not None and value >= below)
        return False if outside else _between(schema, value, "imum")
    return True


def _number(schema: dict[str, Any], word: str) -> float | None:
    number = schema.get(word)
    if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
        raise GrammarInvalid(f"{word} is not a number")  # or it is draft 4's exclusiveMinimum
    return number


def _between(schema: dict[str, Any], size: float, what: str) -> bool:
    low, high = _number(schema, f"min{what}"), _number(schema, f"max{what}")
    return not ((low is not None and size < low) or (high is not None and size > high))


def _members(schema: dict[str, Any], value: dict[str, Any], root: Root, depth: int) -> list[Verdict]:
    properties, needed = properties_of(schema)
    more = schema.get("additionalProperties", True)
    found: list[Verdict] = [all(name in value for name in needed)]
    found.append(_between(schema, len(value), "Properties"))
    if "patternProperties" in schema:
        more = True  # what it says is not known here, and the whole is unknown at best
    return found + [allows(properties.get(name, more), held, root, depth) for name, held in value.items()]


def _items(schema: dict[str, Any], value: list[Any], root: Root, depth: int) -> list[Verdict]:
    first, items = items_of(schema)
    parts = [*first, *[items] * max(0, len(value) - len(first))]
    verdicts = [allows(part, item, root, depth) for part, item in zip(parts, value, strict=False)]
    return [_between(schema, len(value), "Items"), *verdicts]
