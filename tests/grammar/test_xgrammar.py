"""Schemas in XGrammar's words: what it reads otherwise than meant is rewritten, and the rest is told."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.grammar.xgrammar import Lowered, has_type

INT: Any = {"type": "integer"}
X: Any = {"^x": INT}
BESIDE_NAMES = ("additionalProperties beside propertyNames",)

TOLD: list[tuple[Any, tuple[str, ...], tuple[str, ...]]] = [
    ({"properties": {"k": INT}, "required": ["k"]}, (), ()),
    ({"patternProperties": X, "properties": {}, "additionalProperties": False}, (), ()),
    ({"patternProperties": X, "properties": {"k": INT}}, *[("patternProperties beside properties",)] * 2),
    ({"patternProperties": X, "required": ["x1"]}, *[("required beside patternProperties",)] * 2),
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
    ({"$ref": "#name"}, ("$ref to elsewhere",), ("$ref to elsewhere",)),
    ({"$ref": "#/$defs/a"}, (), ()),
    ({"$dynamicRef": "#a"}, ("$dynamicRef",), ("$dynamicRef",)),
    ({"dependencies": {"a": ["b"]}}, ("dependencies",), ("dependencies",)),
    ({"type": "number", "minimum": 1.5, "maximum": 3}, (), ("minimum with a fraction",)),
]  # fmt: skip

WRITTEN: list[tuple[Any, Any, Any]] = [
    ({"type": "string", "pattern": "^a|b$"}, *[{"type": "string", "pattern": "(^a|b$)"}] * 2),
    ({"type": "integer", "enum": [1, "a", 2.0]}, *[{"type": "integer", "enum": [1, 2.0]}] * 2),
    ({"type": "integer", "enum": ["a"]}, *[{"type": "integer", "enum": ["a"]}] * 2),
    ({"required": ["z"]}, *[{"required": ["z"], "properties": {"z": True}, "additionalProperties": True}] * 2),
    (
        {"properties": {"k": INT}, "required": ["k", "z"], "additionalProperties": X},
        *[{"properties": {"k": INT, "z": X}, "required": ["k", "z"], "additionalProperties": X}] * 2,
    ),
    (
        {"properties": {"k": INT}, "patternProperties": X},
        {"properties": {"k": INT}, "patternProperties": X},
        {"properties": {"k": INT}},
    ),
    ({"properties": {}, "patternProperties": X}, *[{"properties": {}, "patternProperties": X}] * 2),
    ({"type": "number", "minimum": 1.5}, {"type": "number", "minimum": 1.5}, {"type": "number"}),
    ({"const": {"pattern": "a|b"}}, *[{"const": {"pattern": "a|b"}}] * 2),
    ({"anyOf": [{"type": "string", "pattern": "a|b"}]}, *[{"anyOf": [{"type": "string", "pattern": "(a|b)"}]}] * 2),
]  # fmt: skip


def lowered(schema: Any, within_genai: bool) -> Lowered:
    return Lowered({"type": "json_schema", "json_schema": schema}, within_genai=within_genai)


@pytest.mark.parametrize(("schema", "library", "within_genai"), TOLD)
def test_what_is_not_imposed_is_told(schema: Any, library: Any, within_genai: Any) -> None:
    assert lowered(schema, False).notices == library
    assert lowered(schema, True).notices == within_genai


@pytest.mark.parametrize(("schema", "library", "within_genai"), WRITTEN)
def test_what_would_be_read_otherwise_is_rewritten(schema: Any, library: Any, within_genai: Any) -> None:
    assert lowered(schema, False).form["json_schema"] == library
    assert lowered(schema, True).form["json_schema"] == within_genai


def test_types_of_values() -> None:
    values = ["a", 1, 1.5, True, None, [], {}]
    kinds = ["string", "integer", "number", "boolean", "null", "array", "object"]
    assert [kind for value, kind in zip(values, kinds, strict=True) if not has_type(value, kind)] == []
    assert not has_type(True, "integer")
    assert has_type(1, ["string", "number"])
