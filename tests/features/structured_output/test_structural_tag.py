"""XGrammar gets schemas unchanged, and what it does not impose is reported."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.features.structured_output.child.structural_tag import PlainFormat

INT: Any = {"type": "integer"}
X: Any = {"^x": INT}
BESIDE_NAMES = ("additionalProperties beside propertyNames",)

TOLD: list[tuple[Any, tuple[str, ...], tuple[str, ...]]] = [
    ({"properties": {"k": INT}, "required": ["k"]}, (), ()),
    ({"patternProperties": X, "properties": {}, "additionalProperties": False}, (), ()),
    ({"patternProperties": X, "properties": {"k": INT}}, *[("patternProperties beside properties",)] * 2),
    ({"patternProperties": X, "required": ["x1"]}, *[("required beside patternProperties",)] * 2),
    ({"required": ["k"]}, *[("required without properties",)] * 2),
    ({"propertyNames": {"pattern": "^a"}}, (), ()),
    ({"propertyNames": {"pattern": "^a"}, "additionalProperties": INT}, (), BESIDE_NAMES),
    ({"propertyNames": {"enum": ["a"]}, "additionalProperties": INT}, (), BESIDE_NAMES),
    ({"propertyNames": {}, "properties": {"k": INT}}, *[("properties beside propertyNames",)] * 2),
    ({"propertyNames": {}, "patternProperties": X}, *[("patternProperties beside propertyNames",)] * 2),
    ({"propertyNames": {"not": {}}}, ("not",), ("not",)),
    ({"items": {"properties": {"k": INT}, "patternProperties": X}}, *[("patternProperties beside properties",)] * 2),
    ({"$defs": {"d": {"type": "string", "format": "date", "maxLength": 3}}}, *[("lengths beside a format",)] * 2),
    ({"type": "string", "format": "shoe"}, ("format shoe",), ("format shoe",)),
    ({"type": "string", "format": "uuid"}, (), ()),
    ({"$ref": "#name"}, ("$ref outside of the schema",), ("$ref outside of the schema",)),
    ({"$ref": "#/$defs/a"}, (), ()),
    ({"$dynamicRef": "#a"}, ("$dynamicRef",), ("$dynamicRef",)),
    ({"dependencies": {"a": ["b"]}}, ("dependencies",), ("dependencies",)),
    ({"type": "number", "minimum": 1.5, "maximum": 3}, (), ("minimum with a fraction",)),
]  # fmt: skip


def plain(schema: Any, within_genai: bool) -> PlainFormat:
    return PlainFormat({"type": "json_schema", "json_schema": schema}, within_genai=within_genai)


@pytest.mark.parametrize(("schema", "library", "within_genai"), TOLD)
def test_what_is_not_imposed_is_told(schema: Any, library: Any, within_genai: Any) -> None:
    assert plain(schema, False).notices == library
    assert plain(schema, True).notices == within_genai


@pytest.mark.parametrize(("within_genai", "blanks"), [(False, {"max_whitespace_cnt": 25}), (True, {})])
def test_a_schema_stays_as_it_is(within_genai: bool, blanks: Any) -> None:
    schema = {"type": "string", "pattern": "^a|b$", "enum": ["a", 1], "minimum": 1.5, "patternProperties": X}
    assert plain(schema, within_genai).form == {"type": "json_schema", "json_schema": schema, **blanks}
