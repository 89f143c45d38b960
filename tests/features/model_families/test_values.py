"""Arguments written as bare text or as Python become the JSON that they mean."""

from __future__ import annotations

import json

from lean_ovms.features.model_families.elements import Element, to_json
from lean_ovms.features.model_families.literals import literal_to_json, python_text
from lean_ovms.features.model_families.values import kinds_of, typed
from lean_ovms.types import Json

KINDS: list[tuple[object, set[str]]] = [
    ({"type": "string"}, {"string"}),
    ({"type": ["string", "null"]}, {"string", "null"}),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
    ({"anyOf": [{"type": "integer"}, {"$ref": "#/x"}]}, set()),
    (
        {"enum": ["a", 1, None, True, 1.5, [], {}]},
        {"string", "integer", "null", "boolean", "number", "array", "object"},
    ),
    ({"const": "a"}, {"string"}),
    ({"type": "integer", "nullable": True}, {"integer", "null"}),
    ({"type": 5}, set()),
    ({}, set()),
    (True, set()),
    (None, set()),
]


def test_kinds_of_a_schema() -> None:
    assert [(schema, kinds_of(schema)) for schema, _ in KINDS] == KINDS
    endless: dict[str, object] = {}
    endless["anyOf"] = [endless]
    assert kinds_of(endless) == set()


TYPED = [
    ("42", "string", '"42"'),
    (" 42 ", "integer", "42"),
    ("42", "number", "42"),
    ("42", "string null", '"42"'),
    ("null", "string null", "null"),
    ("null", "string", '"null"'),
    ("None", "integer", "null"),
    ("None", "", '"None"'),
    ("TRUE", "boolean", "true"),
    ("True", "", '"True"'),
    ("true", "", "true"),
    ("many", "integer", '"many"'),
    ("", "integer", '""'),
    ('{"a": 1}', "object", '{"a": 1}'),
    ("{'a': [1, None]}", "object", '{"a":[1,null]}'),
    ("{'a': f()}", "object", "\"{'a': f()}\""),
    ("['a'", "array", "\"['a'\""),
    ("NaN", "number", '"NaN"'),
    ("123456789012345678901234567890", "integer", "123456789012345678901234567890"),
    ("[" * 100_000, "array", '"' + "[" * 100_000 + '"'),
]


def test_text_becomes_the_value_that_the_schema_means() -> None:
    assert [(text, kinds, typed(text, frozenset(kinds.split()))) for text, kinds, _ in TYPED] == TYPED


EMPTY: list[tuple[str, Json, str]] = [
    ("", {"type": "array"}, "[]"),
    (" \n", {"additionalProperties": {}}, "{}"),
    ("", {"anyOf": [{"type": "null"}, {"properties": {}}]}, "{}"),
    ("", {"type": ["array", "string"]}, '""'),
    ("", {"type": "integer"}, '""'),
    ("", {}, '""'),
]


def test_an_empty_element_is_the_value_that_the_schema_means() -> None:
    assert [(text, schema, to_json(Element("v", [text]), schema)) for text, schema, _ in EMPTY] == EMPTY


LITERALS: list[tuple[str, object]] = [
    ("'a'", "a"),
    ('"it\'s"', "it's"),
    ("[]", []),
    ("()", []),
    ("{}", {}),
    ("(1, 'b',)", [1, "b"]),
    ("{'a': {'b': [True, None]}, 2: 'c',}", {"a": {"b": [True, None]}, "2": "c"}),
    ("-1.5e3", -1500.0),
    ("0x1F", 31),
    ("1_000", 1000),
    (".5", 0.5),
    ("nan", "nan"),
]


def test_python_literals_become_json() -> None:
    assert [(literal, json.loads(literal_to_json(literal) or "")) for literal, _ in LITERALS] == LITERALS


BROKEN = ("", "[", "[1", "{1", "{1: 2", "'a", "[1 2]", "f(1)", "[1]]", "1 + 1", "{'a' 1}", "{'a': }", "[,]", "[" * 5000)


def test_what_is_no_literal_is_refused() -> None:
    assert [literal for literal in BROKEN if literal_to_json(literal) is not None] == []


ESCAPES = [
    (r"a\nb\t\\n\'\"", "a\nb\t\\n'\""),
    (r"\x41\u00e9\U0001F600", "Aé😀"),
    (r"\d\x4\uD800\N{DASH}", r"\d\x4\uD800\N{DASH}"),
    ("a\\\nb", "ab"),
    ("\\", "\\"),
    ("\\\\", "\\"),
]


def test_python_escapes() -> None:
    assert [(raw, python_text(raw)) for raw, _ in ESCAPES] == ESCAPES
