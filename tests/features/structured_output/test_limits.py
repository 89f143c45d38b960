"""Limits on the cost of a grammar, estimated from its text; schemas that XGrammar gets unchanged."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lean_ovms.errors import GrammarInvalid, GrammarTooComplex
from lean_ovms.features.structured_output.child.structural_tag import PlainFormat
from lean_ovms.features.structured_output.expression_size import expression_size
from lean_ovms.features.structured_output.limits import GrammarBounds, check, nesting


def tag(form):
    return json.dumps({"type": "structural_tag", "format": form})


GOOD = [
    {"type": "regex", "pattern": "[a-z]{3}-[0-9]{4}"},
    {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 2000}},
    {"type": "json_schema", "json_schema": {"enum": list(range(5000))}},
    {"type": "json_schema", "json_schema": {"multipleOf": 1000000, "minLength": 3000}},
    {"type": "array", "items": {"multipleOf": 0.0001}},
    {"type": "grammar", "grammar": 'root ::= "((((" [({] {0,5} "{99999}"'},
    {"type": "regex", "pattern": r"https?://([a-z0-9-]+\.)+[a-z]{2,}(/[^\s]*)?"},
    {"type": "regex", "pattern": r"[\w.+-]{1,64}@([a-z0-9-]{1,63}\.){1,4}[a-z]{2,12}"},
    {"type": "regex", "pattern": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"},
    {"type": "regex", "pattern": "{" * 100 + "[(]{3}" + "\\("},
    {"type": "json_schema", "json_schema": {"properties": {f"p{i}": {} for i in range(200)}}},
]


def test_what_is_ordinary_passes():
    assert [check(tag(form), GrammarBounds())["format"] for form in GOOD] == GOOD


def nested(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return {"type": "json_schema", "json_schema": schema}


BAD = [
    {"type": "grammar", "grammar": "x" * 70000},
    nested(70),
    {"type": "regex", "pattern": "(" * 65 + ")" * 65},
    {"type": "regex", "pattern": "((a{100}){100}){100}"},
    {"type": "regex", "pattern": "a{1,99999}"},
    {"type": "regex", "pattern": "a{99999,}"},
    {"type": "regex", "pattern": "a{" + "9" * 100 + "}"},
    {"type": "regex", "pattern": "[a-z]{99}" * 300},
    {"type": "grammar", "grammar": 'root ::= ("a"{200}){200}'},
    {"type": "regex", "pattern": "((.?){50}){50}"},
    {"type": "regex", "pattern": "x(?:(?P<a>.?){50}){50}y"},
    {"type": "regex", "pattern": "(.?.?.?){300}"},
    {"type": "regex", "pattern": "(((.?){12}){12}){12}"},
    {"type": "regex", "pattern": "([a-z]*|b){200}"},
    {"type": "grammar", "grammar": 'root ::= "a" ( [b]? | "" ){2, 150}'},
    {"type": "json_schema", "json_schema": {"maxLength": 1e30}},
    {"type": "json_schema", "json_schema": {"multipleOf": 99991}},
    {"type": "json_schema", "json_schema": {"multipleOf": 12.3457}},
    {"type": "json_schema", "json_schema": {"enum": list(range(5001))}},
    {"type": "sequence", "elements": [{"json_schema": {"properties": {f"p{i}": {} for i in range(501)}}}]},
]


def test_what_would_be_too_much_is_refused():
    for form in BAD:
        with pytest.raises(GrammarTooComplex):
            pytest.fail(str(check(tag(form), GrammarBounds()))[:200])


def test_repetitions_multiply_when_nested_and_add_up_side_by_side():
    assert expression_size("(a{10}){10}b{5}", quotes=False)[:2] == (1, 115)
    assert expression_size('( "a"{10} ) {10}', quotes=True)[:2] == (1, 110)
    assert expression_size("(a{10})*{10}", quotes=False).repetition == 20
    assert expression_size("a{2,7}", quotes=False).repetition == 7
    assert expression_size("a{3,}", quotes=False).repetition == 3
    assert expression_size("a{x}", quotes=False).repetition == 0


PLACES = [
    ("a?b", 0),
    ("[a-z]{3,200}", 1),
    ("(a?){7}", 7),
    ("(a?b?c){7}", 3),
    ("(a|b?){2,7}", 14),
    ("(a+?b){7}", 1),
    ("((a?){3}|x){5}", 20),
    ("(a{0,9}){5}", 5),
    ("\\{5}(a){5}", 1),
    ("(?:a*){6,}", 6),
]
EBNF = [('("" | "a"){9}', 9), ('"(a?){50}"', 0), ('( a "?" ){9}', 1)]


def test_repetitions_of_what_may_be_empty():
    assert [(text, expression_size(text, quotes=False).overlap) for text, _ in PLACES] == PLACES
    assert [(text, expression_size(text, quotes=True).overlap) for text, _ in EBNF] == EBNF


def test_brackets_count_before_anything_recurses_and_those_in_strings_do_not():
    with pytest.raises(GrammarTooComplex):
        check("[" * 30000, GrammarBounds())
    with pytest.raises(GrammarInvalid):
        check("{", GrammarBounds())
    assert nesting('{"a": "[[[{{{\\"[[[", "b": [1]}') == 2


@pytest.mark.slow
def test_the_look_is_linear():
    began = time.process_time()
    for text in ("(" * 20000, "{" * 20000, "[" * 20000, "\\" * 20001, "a{9" * 7000, '"' * 20001):
        expression_size(text, quotes=True)
        expression_size(text, quotes=False)
    assert time.process_time() - began < 3


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
