"""Which JSON schemas are invalid, and where; and which have no finite value."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lean_ovms.errors import GrammarTooComplex, SchemaInvalid
from lean_ovms.features.structured_output.validity import check

INT: Any = {"type": "integer"}
WRONG: list[tuple[Any, str]] = [
    ({"type": "objct"}, "'objct' at #/type is not a type or a list of types, which are string, number,"),
    ({"type": ["string", "nul"]}, "#/type is not"),
    ({"type": []}, "#/type is not"),
    ({"type": None}, "None at #/type is not"),
    ({"type": {"a": 1}}, "#/type is not"),
    ({"properties": []}, "[] at #/properties is not an object of schemas"),
    ({"properties": {"a": 5}}, "5 at #/properties/a is not a schema"),
    ({"properties": {"a/b~": {"type": "int"}}}, "'int' at #/properties/a~1b~0/type is not"),
    ({"patternProperties": {"^": {"required": True}}}, "True at #/patternProperties/^/required is not a list of names"),
    ({"required": ["a", 5]}, "#/required is not a list of names"),
    ({"items": 5}, "5 at #/items is not a schema"),
    ({"items": {"items": {"minLength": "5"}}}, "'5' at #/items/items/minLength is not a whole number of 0 or more"),
    ({"items": [INT, {"type": "x"}]}, "#/items/1/type"),
    ({"prefixItems": {}}, "#/prefixItems is not a list of schemas"),
    ({"anyOf": []}, "#/anyOf is not a list of schemas"),
    ({"anyOf": {}}, "#/anyOf is not a list of schemas"),
    ({"anyOf": [INT, {"type": "x"}]}, "#/anyOf/1/type"),
    ({"additionalProperties": "no"}, "'no' at #/additionalProperties is not a schema"),
    ({"minItems": -1}, "-1 at #/minItems"),
    ({"maxLength": 1.5}, "1.5 at #/maxLength"),
    ({"maxLength": True}, "True at #/maxLength"),
    ({"minimum": "3"}, "'3' at #/minimum is not a number"),
    ({"multipleOf": 0}, "0 at #/multipleOf is not a number above 0"),
    ({"pattern": 5}, "5 at #/pattern is not a string"),
    ({"uniqueItems": "yes"}, "'yes' at #/uniqueItems is not true or false"),
    ({"enum": "a"}, "'a' at #/enum is not a list of values"),
    ({"$ref": 5}, "5 at #/$ref is not a string"),
    ({"properties": {"a": {"$ref": "#/$defs/x"}}}, "'#/$defs/x' at #/properties/a/$ref does not point to a schema"),
    ({"$defs": {"d": {"type": "x"}}}, "'x' at #/$defs/d/type"),
    ({"not": {"type": "x"}}, "#/not/type"),
    ({"if": {}, "then": {"type": "x"}}, "#/then/type"),
    ({"dependentRequired": {"a": "b"}}, "#/dependentRequired is not an object of lists of names"),
    (5, "5 at # is not a schema"),
]  # fmt: skip
STRICTER = ({"$ref": 5}, {"properties": {"a": {"$ref": "#/$defs/x"}}})
"""Invalid schemas that the metaschema accepts, because it does not check references."""


def test_what_is_no_schema_is_refused_with_its_place() -> None:
    metaschema = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    for schema, message in WRONG:
        with pytest.raises(SchemaInvalid) as raised:
            check(schema)
        assert message in raised.value.message
        assert schema in STRICTER or list(metaschema.iter_errors(schema)), schema


ENDLESS: list[Any] = [
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    {"properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "array", "prefixItems": [INT, {"$ref": "#"}], "minItems": 2},
    {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False, "minProperties": 1},
    {"type": "object", "patternProperties": {"^a": {"$ref": "#"}}, "additionalProperties": False, "required": ["a"]},
    {"type": ["object", "array"], "properties": {"a": {"$ref": "#"}}, "required": ["a"],
     "items": {"$ref": "#"}, "minItems": 1},
    {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
        "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
        "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}},
    {"allOf": [{"type": "object", "properties": {"a": {"oneOf": [{"$ref": "#"}]}}, "required": ["a"]}]},
    False,
]  # fmt: skip


def test_what_requires_itself_is_refused() -> None:
    for schema in ENDLESS:
        with pytest.raises(SchemaInvalid, match="no finite value satisfies"):
            check(schema)


NODE: Any = {"type": "object", "properties": {"next": {"$ref": "#"}}}
RIGHT: list[Any] = [
    True,
    {},
    NODE,
    {**NODE, "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
    {**NODE, "type": ["object", "null"], "required": ["next"]},
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "array", "prefixItems": [INT, {"$ref": "#"}], "minItems": 1},
    {"type": "object", "properties": {"l": {"type": "array", "items": {"$ref": "#"}}}, "required": ["l"]},
    {"type": "object", "additionalProperties": {"anyOf": [INT, {"$ref": "#"}]}, "minProperties": 2},
    {"$ref": "#/components/a", "components": {"a": {"type": "string"}}},
    {"$ref": "https://example.com/x"},
    {"enum": [{"type": "objct"}], "default": {"type": "objct"}, "examples": [{"properties": 5}]},
    {"properties": {"type": {"type": "string"}, "required": INT, "properties": {"type": "object"}}},
    {"type": "string", "minLength": 3.0, "description": None, "nullable": True, "x-own": 5},
    {"definitions": {"a": INT}, "items": {"$ref": "#/definitions/a"}},
]


def test_others_are_right() -> None:
    for schema in RIGHT:
        check(schema)


@pytest.mark.slow
def test_a_long_chain_of_references_is_followed() -> None:
    chain = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(2000)}
    check({"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": INT}})
    with pytest.raises(GrammarTooComplex):
        check({"anyOf": [{}] * 30_000})
