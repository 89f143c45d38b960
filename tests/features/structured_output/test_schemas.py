"""Schemas as grammar libraries get them: what is added, what is left out with a warning, and what is rejected, in
little time."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from lean_ovms.errors import GrammarInvalid, GrammarTooComplex
from lean_ovms.features.structured_output.schemas import closed
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
    ],
)
def test_what_no_grammar_can_impose_is_left_out_and_told(schema: Any, dropped: list[str]) -> None:
    done, found = closed(schema)
    assert found == dropped
    assert not dropped or "(?" not in str(done)


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
