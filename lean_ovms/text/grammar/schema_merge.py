"""Putting JSON schemas together: where a reference leads, and several schemas that must all hold as one."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from ...errors import GrammarInvalid, GrammarTooComplex
from ...types import Json

MAX_HOPS = 32
MAX_MERGES = 2000
"""For one grammar: 10 ms. Twenty definitions of two references each would be a million."""


class Root:
    """The schema in which references are looked up, and how many merges are left for it."""

    __slots__ = ("_merges", "schema")

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._merges = MAX_MERGES

    def count(self) -> None:
        """Raises GrammarTooComplex."""
        self._merges -= 1
        if self._merges < 0:
            raise GrammarTooComplex(f"The schema takes more than {MAX_MERGES} merges of schemas")


_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def pointed(root: Root, reference: str) -> Any:
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


def merged(base: Json, parts: list[Any], root: Root) -> Any:
    """A schema that holds where base and all parts hold; alternatives in them stay as they are. Raises RequestError."""
    result = dict(base)
    for part in parts:
        root.count()
        found = _resolved(part, root)
        if found is False:
            return False
        if found is not True:
            result = _both(result, found, root)
    return result


def _resolved(schema: Any, root: Root) -> Any:
    """The schema with a reference at its top, and allOf, put in its place."""
    for _ in range(MAX_HOPS):
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarInvalid("A schema is not an object")
        if isinstance(reference := schema.get("$ref"), str):
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            target = pointed(root, reference)
            schema = merged(beside, [target], root) if beside else target
        elif isinstance(parts := schema.get("allOf"), list):
            schema = merged({key: value for key, value in schema.items() if key != "allOf"}, parts, root)
        else:
            return schema
    raise GrammarTooComplex("References in the schema lead round in a circle")


def _both(one: Json, other: Json, root: Root) -> Json:
    result = dict(one)
    for key, value in other.items():
        if key not in result or result[key] == value:
            result[key] = value
        else:
            result[key] = _one_of_both(key, result[key], value, root)
    return result


def _one_of_both(key: str, one: Any, other: Any, root: Root) -> Any:
    if key == "properties" and isinstance(one, dict) and isinstance(other, dict):
        shared = {
            name: merged(one[name], [other[name]], root)
            for name in one
            if name in other and one[name] != other[name] and isinstance(one[name], dict)
        }
        return {**one, **other, **shared}
    if key == "required" and isinstance(one, list) and isinstance(other, list):
        return [*one, *(name for name in other if name not in one)]
    if key == "enum" and isinstance(one, list) and isinstance(other, list):
        return [value for value in one if value in other]
    if key == "type":
        return _types_of_both(one, other)
    if key in _LARGER and _numbers(one, other):
        return max(one, other)
    if key in _SMALLER and _numbers(one, other):
        return min(one, other)
    if key in ("anyOf", "oneOf"):
        return other  # the outer one is being taken apart already
    return other


def _types_of_both(one: Any, other: Any) -> Any:
    first = one if isinstance(one, list) else [one]
    second = other if isinstance(other, list) else [other]
    both = [t for t in first if t in second or (t == "integer" and "number" in second)]
    both += [t for t in second if t not in both and t == "integer" and "number" in first]
    if not both:
        raise GrammarInvalid(f"types exclude each other: {one!r} and {other!r}"[:120])
    return both


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
