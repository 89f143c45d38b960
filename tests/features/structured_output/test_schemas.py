"""JSON schemas: which are invalid and where, which have no finite value, and what grammar libraries get."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lean_ovms.errors import GrammarInvalid, GrammarTooComplex, SchemaInvalid
from lean_ovms.features.structured_output.schemas import closed
from lean_ovms.features.structured_output.validity import check
from lean_ovms.grammar.schema import flat

A: Any = {"a": {"type": "string"}}
B: Any = {"b": {"type": "integer"}}


def shut(properties: Any, **more: Any) -> Any:
    """Returns the schema of an object that has only these properties."""
    return {**more, "properties": properties, "additionalProperties": False}


D: Any = {"x": {"$ref": "#/$defs/d"}}
SAID: Any = {"x": {"$ref": "#/$defs/d", "description": "said"}}
CLOSED: list[tuple[Any, Any]] = [
    ({"type": "string"}, {"type": "string"}),
    (True, True),
    ({"type": "object"}, {"type": "object"}),
    ({"properties": A}, shut(A)),
    ({"properties": A, "additionalProperties": True}, {"properties": A, "additionalProperties": True}),
    ({"properties": A, "additionalProperties": {}}, {"properties": A, "additionalProperties": {}}),
    ({"properties": A, "required": ["z"]}, shut({**A, "z": True}, required=["z"])),
    ({"properties": A, "unevaluatedProperties": False}, shut(A)),
    ({"properties": A, "unevaluatedProperties": B["b"]}, {"properties": A, "additionalProperties": B["b"]}),
    ({"patternProperties": {"^x": {}}}, shut({}, patternProperties={"^x": {}})),
    ({"items": {"properties": A}, "prefixItems": [{"properties": B}]}, {"items": shut(A), "prefixItems": [shut(B)]}),
    ({"anyOf": [{"properties": A}, {"properties": B}]}, {"anyOf": [shut(A), shut(B)]}),
    ({"allOf": [{"properties": A}, {"properties": B}]}, {"allOf": [shut({**A, "b": True}), shut({**B, "a": True})]}),
    ({"properties": A, "anyOf": [{"properties": B}, {"required": ["a"]}]},
     shut({**A, "b": True}, anyOf=[shut({**B, "a": True}), {"required": ["a"]}])),
    ({"properties": D, "$defs": {"d": {"properties": A}}}, shut(D, **{"$defs": {"d": shut(A)}})),
    ({"properties": SAID, "$defs": {"d": A["a"]}}, shut(SAID, **{"$defs": {"d": A["a"]}})),
    ({"not": {"properties": A}, "if": {"properties": A}}, {"not": {"properties": A}, "if": {"properties": A}}),
    ({"enum": [{"properties": {}}]}, {"enum": [{"properties": {}}]}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "expected"), CLOSED)
def test_an_object_has_the_properties_that_it_declares_and_no_others(schema: Any, expected: Any) -> None:
    assert closed(schema) == (expected, [])


def test_a_reference_beside_other_keywords_is_closed_together_with_them() -> None:
    schema = {"$ref": "#/$defs/d", "properties": B, "$defs": {"d": {"properties": A}}}
    done, _ = closed(schema)
    assert isinstance(done, dict)
    assert "$ref" not in done
    assert set(done["properties"]) == {"a", "b"}
    assert set(done["allOf"][0]["properties"]) == {"a", "b"}
    assert done["additionalProperties"] is done["allOf"][0]["additionalProperties"] is False


def test_a_recursive_schema_stays_recursive() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#", "minProperties": 1}, "v": {"type": "integer"}}}
    done, _ = closed(node)
    assert '"$ref"' in str(done).replace("'", '"')


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        ({"pattern": "a(?=b)"}, ["pattern"]),
        ({"properties": {"x": {"pattern": "(a)\\1"}}}, ["pattern"]),
        ({"patternProperties": {"^(?!x)": {}, "^a": {}}}, ["patternProperties"]),
        ({"pattern": "^[a-z]+$"}, []),
        ({"type": "string", "maxLength": 524288, "minLength": 3}, ["maxLength of more than 10000"]),
        ({"items": {"maxProperties": 10001}, "maxItems": 10**30},
         ["maxItems of more than 10000", "maxProperties of more than 10000"]),
        ({"maxLength": 10000, "maxItems": 10000, "maxProperties": 10000}, []),
    ],
)  # fmt: skip
def test_what_no_grammar_can_impose_is_left_out_and_told(schema: Any, dropped: list[str]) -> None:
    done, found = closed(schema)
    assert found == dropped
    assert not dropped or "(?" not in str(done)
    assert ("max" in str(done)) == (not dropped and "max" in str(schema))


WRONG: list[Any] = [
    5,
    {"type": "nope"},
    {"type": 5},
    {"type": ["string", 5]},
    {"enum": "red"},
    {"oneOf": {}},
    {"allOf": [5]},
    {"properties": []},
    {"properties": {"a": 7}},
    {"required": "a"},
    {"required": [5]},
    {"items": "x"},
    {"prefixItems": {}},
    {"patternProperties": 5},
    {"minLength": "3"},
    {"maxItems": -1},
    {"minProperties": True},
    {"$ref": 5},
    {"$ref": "#/nope"},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
]


def test_a_wrong_schema_is_invalid() -> None:
    for schema in WRONG:
        with pytest.raises(GrammarInvalid):
            closed(schema)


WORDS = ["type", "enum", "required", "properties", "items", "minLength", "pattern", "allOf", "anyOf", "not", "$ref"]


VALUES: list[Any] = [5, "x", [[1]], {"a": 5}, None, [None], {}, [{"$ref": 5}]]


@pytest.mark.parametrize("word", WORDS)
def test_whatever_a_keyword_has_nothing_else_than_an_error_for_the_client_comes_out(word: str) -> None:
    for one in ({word: value} for value in VALUES):
        for schema in (
            one,
            {"properties": {"a": one}, "$ref": "#/properties/a"},
            {"allOf": [one, {"properties": {"a": {}}}]},
            {"$defs": {"a": one}, "anyOf": [{"$ref": "#/$defs/a"}, {"required": ["x"]}], "properties": {}},
        ):
            with contextlib.suppress(GrammarInvalid, GrammarTooComplex):
                done, _ = closed(schema)
                flat(done, done)


def bush(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [{"properties": {"a": schema}}, {"properties": {"b": schema}}]}
    return schema


def doubled(depth: int, **beside: Any) -> Any:
    """Returns a schema in which each definition refers to the next one twice."""
    defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}", **beside}] * 2} for i in range(depth)}
    return {"$defs": {**defs, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0", **beside}


@pytest.mark.parametrize("schema", [bush(16), doubled(25), doubled(25, minLength=1), {"allOf": [bush(13)] * 2}])
@pytest.mark.slow
def test_a_schema_that_explodes_is_found_out_soon(schema: Any) -> None:
    began = time.process_time()
    try:
        done, _ = closed(schema)
        flat(done, done)
    except GrammarTooComplex:
        pass
    assert time.process_time() - began < 2


INT: Any = {"type": "integer"}
INVALID: list[tuple[Any, str]] = [
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
    for schema, message in INVALID:
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
