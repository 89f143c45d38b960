"""Forms of JSON schemas that are easier to compare: an object's properties, the values that are listed."""

from __future__ import annotations

from typing import Any

from ...errors import GrammarInvalid
from ...types import Json
from .schema_keywords import Schema, kinds_of, properties_of, without
from .schema_merge import Root
from .schema_validity import allows, allows_each


class ObjectSchema:
    """An object schema. properties: with those that are only required. needed: names that are required.

    more: the schema of further properties that a grammar writes; False: none.
    """

    def __init__(self, schema: Json) -> None:
        properties, needed = properties_of(schema)
        self.schema = schema
        self.needed: list[str] = needed
        self.more = schema.get("additionalProperties", "properties" not in schema)
        unknown = [name for name in needed if name not in properties]
        self.properties: Json = {**properties, **dict.fromkeys(unknown, True if self.more is False else self.more)}

    def writes(self, name: str) -> bool:
        """Whether a grammar of it may write this property."""
        return bool(self.properties[name] is not False if name in self.properties else self.more is not False)

    def value(self, name: str) -> Schema:
        """What a property must be for the object to be valid."""
        open_ = "patternProperties" in self.schema
        properties = self.schema.get("properties", {})
        return properties.get(name, True if open_ else self.schema.get("additionalProperties", True))

    def changed(self, properties: Json, needed: list[str]) -> Json:
        """The schema with other properties."""
        more = {} if self.more is False else {"additionalProperties": self.more}
        return {**self.schema, **more, "properties": {**self.properties, **properties}, "required": needed}


def listed_values(schema: Schema, root: Root) -> list[Any] | None:
    """The values that a grammar of a schema writes, if it lists them."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]] if allows(schema, schema["const"], root) is not False else []
    if "enum" in schema:
        if not isinstance(schema["enum"], list):
            raise GrammarInvalid("enum is not a list")
        beside = without(schema, "enum")
        verdicts = allows_each(beside, schema["enum"], root)
        return [value for value, valid in zip(schema["enum"], verdicts, strict=True) if valid is not False]
    if {"anyOf", "oneOf"} & set(schema):
        return None
    listed: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
    kinds = kinds_of(schema)
    return listed[kinds[0]] if len(kinds) == 1 and kinds[0] in listed else None


def exactly(value: Any) -> Json:
    """A schema by which, of the values of its type, at least this one is valid, and few others."""
    if isinstance(value, str):
        return {"type": "string", "minLength": len(value), "maxLength": len(value)}
    if isinstance(value, list):
        size, first = len(value), [{"const": item} for item in value]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": size, "maxItems": size}
    if isinstance(value, dict):
        properties = {name: {"const": held} for name, held in value.items()}
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    return {"type": "number", "minimum": value, "maximum": value}


def item_at(items: tuple[list[Schema], Schema], place: int) -> Schema:
    """The schema of an item."""
    first, others = items
    return first[place] if place < len(first) else others


def is_list(schema: Schema) -> bool:
    """Whether it is const or enum."""
    return isinstance(schema, dict) and ("const" in schema or "enum" in schema)
