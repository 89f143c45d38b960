"""Checks that a JSON schema is valid and has a finite value: https://json-schema.org/draft/2020-12.

The libraries ignore many mistakes, and generate without end if every value of a schema contains another one of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...errors import GrammarInvalid, GrammarTooComplex, SchemaInvalid
from ...grammar.schema import resolved
from ...types import SCHEMA_MAPS, Json
from .schemas import MAX_NODES, TYPES

MAX_ROUNDS = 50
"""The most rounds in which schemas with a value are searched. After these, all others are taken to have one."""
_SCHEMAS = (
    *("additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains", "not"),
    *("if", "then", "else"),
)
_MAPS = (*SCHEMA_MAPS, "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_STRINGS = ("pattern", "format", "$ref")


def check(schema: Any) -> None:
    """Raises SchemaInvalid, with the path of the mistake, for a schema that is invalid or has no finite value.

    Raises GrammarTooComplex if there are too many schemas inside it.
    """
    nodes = list(_nodes(schema))
    if not _Finite(schema, [node for _, node in nodes]).holds(schema):
        raise SchemaInvalid("no finite value satisfies the schema, since it requires itself")


def _nodes(schema: Any) -> Iterator[tuple[str, Any]]:
    """Checks each schema inside a schema, and yields its path and the schema, outer ones first."""
    todo = [("#", schema)]
    count = 0
    while todo:
        place, one = todo.pop()
        count += 1
        if count > MAX_NODES:
            raise GrammarTooComplex(f"the schema has more than {MAX_NODES} parts")
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise SchemaInvalid(f"{_shown(one)} at {place} is not a schema, which is an object, true or false")
        for key, value in one.items():
            is_right, wanted = _RULES.get(key, _ANY)
            if not is_right(value):
                raise SchemaInvalid(f"{_shown(value)} at {place}/{_escaped(key)} is not {wanted}")
        _check_reference(schema, one, place)
        todo += [(f"{place}/{where}", part) for where, part in _within(one)]
        yield place, one


def _within(schema: Json) -> Iterator[tuple[str, Any]]:
    """Yields the schemas directly inside a valid schema, with their paths in it."""
    for key in _SCHEMAS:
        if key in schema:
            yield key, schema[key]
    for key in _MAPS:
        yield from ((f"{key}/{_escaped(name)}", part) for name, part in schema.get(key, {}).items())
    for key in (*_LISTS, "items"):
        parts = schema.get(key, [])
        if isinstance(parts, list):
            yield from ((f"{key}/{at}", part) for at, part in enumerate(parts))
        else:
            yield key, parts


def _check_reference(root: Any, schema: Json, place: str) -> None:
    try:
        resolved(root, schema.get("$ref", "#"))
    except GrammarInvalid:
        raise SchemaInvalid(f"{_shown(schema['$ref'])} at {place}/$ref does not point to a schema") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_type(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in TYPES for kind in kinds)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_ANY: tuple[Callable[[Any], bool], str] = (lambda value: True, "")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"a type or a list of types, which are {', '.join(TYPES)}"),
    "required": (_is_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_is_names, value.values())),
        "an object of lists of names",
    ),
    **dict.fromkeys(_MAPS, (lambda value: isinstance(value, dict), "an object of schemas")),
    **dict.fromkeys(_LISTS, (lambda value: isinstance(value, list) and bool(value), "a list of schemas")),
    **dict.fromkeys(
        _COUNTS, (lambda value: _is_number(value) and value >= 0 and value == int(value), "a whole number of 0 or more")
    ),
    **dict.fromkeys(_NUMBERS, (_is_number, "a number")),
    **dict.fromkeys(_STRINGS, (lambda value: isinstance(value, str), "a string")),
}
"""The rule for a keyword's value, and what the value ought to be."""


class _Finite:
    """The schemas that have a finite value, which are found from the inside to the outside."""

    def __init__(self, root: Any, nodes: list[Any]) -> None:
        self._root = root
        self._known = set(map(id, nodes))
        self._ends: set[int] = set()
        left = nodes[::-1]
        for _ in range(MAX_ROUNDS):
            found = [id(node) for node in left if self._has_value(node)]
            self._ends.update(found)
            left = [node for node in left if id(node) not in self._ends]
            if not found:
                return
        self._ends.update(map(id, left))

    def holds(self, schema: Any) -> bool:
        """Returns whether a schema is known to have a finite value; one of an unknown keyword is taken to have it."""
        return schema is not False and (id(schema) not in self._known or id(schema) in self._ends)

    def _has_value(self, schema: Json) -> bool:
        target = resolved(self._root, schema["$ref"]) if "$ref" in schema else None
        several = [*([] if target is None else [target]), *schema.get("allOf", ())]
        if not all(map(self.holds, several)):
            return False
        if any(not any(map(self.holds, schema[key])) for key in ("anyOf", "oneOf") if key in schema):
            return False
        if "enum" in schema or "const" in schema or "type" not in schema:
            return "type" in schema or "properties" not in schema or self._has_object(schema)
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return any(
            self._has_object(schema) if kind == "object" else kind != "array" or self._has_list(schema)
            for kind in kinds
        )

    def _has_object(self, schema: Json) -> bool:
        declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        more = schema.get("additionalProperties", True)
        others = self.holds(more) or any(map(self.holds, patterns.values()))
        if not all(self.holds(declared[name]) if name in declared else others for name in schema.get("required", ())):
            return False
        return others or sum(map(self.holds, declared.values())) >= schema.get("minProperties", 0)

    def _has_list(self, schema: Json) -> bool:
        items, first, least = schema.get("items", True), schema.get("prefixItems", []), int(schema.get("minItems", 0))
        if isinstance(items, list):
            items, first = schema.get("additionalItems", True), items
        return all(map(self.holds, first[:least])) and (least <= len(first) or self.holds(items))


def _shown(value: Any) -> str:
    return repr(value)[:40]


def _escaped(name: str) -> str:
    return name[:80].replace("~", "~0").replace("/", "~1")
