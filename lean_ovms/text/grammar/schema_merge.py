"""Resolve references in JSON schemas, and merge several schemas that must all hold into one."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from ...errors import GrammarInvalid, GrammarTooComplex
from ...types import Json

MAX_HOPS = 32
MAX_MERGES = 2000
"""For one grammar: 10 ms. Twenty definitions of two references each would be a million."""


class Contradiction(GrammarInvalid):
    """No value is valid by a schema."""


class Root:
    """The schema that references are resolved in, and the number of merges left for it."""

    __slots__ = ("_merges", "schema")

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._merges = MAX_MERGES

    def count(self) -> None:
        """Raises GrammarTooComplex."""
        self._merges -= 1
        if self._merges < 0:
            raise GrammarTooComplex(f"The schema takes more than {MAX_MERGES} merges of schemas")


_LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def resolve_reference(root: Root, reference: str) -> Any:
    """The schema that a local reference names. Raises GrammarInvalid."""
    if not reference.startswith("#"):
        raise GrammarInvalid(f"$ref leads outside of the schema: {reference[:80]!r}")
    found = root.schema
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key[:6]) < len(found):
            found = found[int(key[:6])]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise GrammarInvalid(f"$ref leads nowhere: {reference[:80]!r}")
    return found


def merge(base: Json, parts: list[Any], root: Root) -> Any:
    """A schema equal to base and all parts together; alternatives in them are not changed. Raises RequestError."""
    result = dict(base)
    for part in parts:
        root.count()
        found = _resolve(part, root)
        if found is False:
            return False
        if found is not True:
            result = _merge_two(result, found, root)
    return result


def _resolve(schema: Any, root: Root) -> Any:
    """The schema with a reference at its top, and allOf, resolved."""
    for _ in range(MAX_HOPS):
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarInvalid("A schema is not an object")
        if isinstance(reference := schema.get("$ref"), str):
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            target = resolve_reference(root, reference)
            schema = merge(beside, [target], root) if beside else target
        elif isinstance(parts := schema.get("allOf"), list):
            schema = merge({key: value for key, value in schema.items() if key != "allOf"}, parts, root)
        else:
            return schema
    raise GrammarTooComplex("References in the schema lead round in a circle")


def _merge_two(one: Json, other: Json, root: Root) -> Json:
    result = dict(one)
    for key, value in other.items():
        if key not in result or result[key] == value:
            result[key] = value
        else:
            result[key] = _merge_keyword(key, result[key], value, root)
    return result


def _merge_keyword(key: str, one: Any, other: Any, root: Root) -> Any:
    if key == "properties" and isinstance(one, dict) and isinstance(other, dict):
        shared = {
            name: _both(one[name], other[name], root) for name in one if name in other and one[name] != other[name]
        }
        return {**one, **other, **shared}
    if key in ("required", "enum", "anyOf", "oneOf") and isinstance(one, list) and isinstance(other, list):
        return _merge_lists(key, one, other, root)
    if key == "const":
        raise Contradiction(f"constants exclude each other: {one!r} and {other!r}"[:120])
    if key == "type":
        return _common_types(one, other)
    if key in _LOWER_BOUNDS and _numbers(one, other):
        return max(one, other)
    if key in _UPPER_BOUNDS and _numbers(one, other):
        return min(one, other)
    if key in ("items", "additionalProperties") and not isinstance(one, list) and not isinstance(other, list):
        return _both(one, other, root)
    if key == "not":
        return _either(one, other)
    return other


def _both(one: Any, other: Any, root: Root) -> Any:
    """A schema for the values of a part that may be left out; False if there are none."""
    try:
        return merge({}, [one, other], root)
    except Contradiction:
        return False


def _merge_lists(key: str, one: list[Any], other: list[Any], root: Root) -> list[Any]:
    if key == "required":
        return [*one, *(name for name in other if name not in one)]
    if key != "enum":
        return _pairs(one, other, root)
    both = [value for value in one if value in other]
    if not both:
        raise Contradiction("two lists of values that must both hold have none in common")
    return both


def _pairs(one: list[Any], other: list[Any], root: Root) -> list[Any]:
    """Alternatives of two lists that must both hold: one of each. Of exactly one pair if it is exactly one of each."""
    found = []
    for first in one:
        for second in other:
            try:
                both = merge({}, [first, second], root)
            except Contradiction:
                continue  # they exclude each other
            if both is not False:
                found.append(both)
    if not found:
        raise Contradiction("alternatives exclude each other")
    return found


def _either(one: Any, other: Any) -> Any:
    """What is excluded by either of two schemas under `not`."""
    lists = [part.get("enum") if isinstance(part, dict) and len(part) == 1 else None for part in (one, other)]
    first, second = lists
    if isinstance(first, list) and isinstance(second, list):
        return {"enum": [*first, *(value for value in second if value not in first)]}
    return {"anyOf": [one, other]}


def _common_types(one: Any, other: Any) -> Any:
    first = one if isinstance(one, list) else [one]
    second = other if isinstance(other, list) else [other]
    both = [t for t in first if t in second or (t == "integer" and "number" in second)]
    both += [t for t in second if t not in both and t == "integer" and "number" in first]
    if not both:
        raise Contradiction(f"types exclude each other: {one!r} and {other!r}"[:120])
    return both


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
