"""Random walks through grammars: whatever a model would say, the text has the form that was asked for.

jsonschema, Python's `re` and the family's own parser check it.
"""

import json
import random
from dataclasses import replace

import jsonschema
import pytest

from lean_ovms.features.guidance.child.library import Guidance
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output.constraint import build
from lean_ovms.types import OutputConstraint
from tests.features.guidance.test_grammar import EOS, PIECES, WIDTH, allowed, begin, constraint, context
from tests.features.model_families.test_any_cut import parse

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library():
    return Guidance(PIECES, WIDTH, [EOS, 0])


CLOSING = {i for i, piece in enumerate(PIECES) if piece and piece[:1] in b'"}],:<@'}
"""Tokens that often end a string, a list, a name or a call. A walk that never preferred them would seldom end."""


def walked(library, tag, seed, most=800):
    """Returns a random text of a grammar, and whether it has ended within a limit of tokens."""
    dice, matcher, ids = random.Random(seed), begin(library, tag), []
    while len(ids) < most:
        choice = sorted(allowed(matcher))
        if EOS in choice and dice.random() < 0.3:
            choice = [EOS]
        elif dice.random() < 0.3:
            choice = [i for i in choice if i in CLOSING] or choice
        token = dice.choice(choice)
        if matcher.consume(token):
            break
        ids.append(token)
    return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace"), len(ids) < most


WORDS = {"type": "string", "maxLength": 12}
TOOL = {
    "type": "object",
    "properties": {
        "city": WORDS,
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "precise": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "integer", "minimum": -99, "maximum": 999}, "maxItems": 3},
        "place": {
            "type": "object",
            "properties": {"lat": {"enum": [-89.5, 0, 0.25, 90]}, "name": {"enum": ["a", None]}},
            "required": ["lat", "name"],
        },
    },
    "required": ["unit", "days", "place"],
}
PLAIN = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 14}, "on": {"type": "boolean"}},
    "required": ["days"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": TOOL}},
    {"type": "function", "function": {"name": "wait", "parameters": PLAIN}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.mark.parametrize("family", registry().tool_names)
def test_every_family_makes_calls_that_its_own_parser_reads_and_the_schemas_allow(library, family):
    asked = OutputConstraint(tool_calls="required")
    setting = context(family, None, *TOOLS)
    for tools in (TOOLS, TOOLS[1:2]):
        setting = replace(setting, tools=tuple(tools), parallel=tools is TOOLS)
        built = build(asked, setting)
        assert built.notices == []
        text, ended = walked(library, built.tag, 1)
        answer = parse(registry().make(family, None, tools=tools), [text])
        calls = answer.calls if ended else answer.calls[:-1]
        assert calls, text
        assert ended or setting.parallel
        assert not ended or text.endswith(answer.content.strip()), text  # what follows the calls ends an answer
        schemas = {one["function"]["name"]: one["function"].get("parameters", {"maxProperties": 0}) for one in tools}
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[name])


SCHEMAS = {
    "anything": {},
    "object": {"type": "object"},
    "closed object": {"type": "object", "properties": {}, "additionalProperties": False},
    "string": {"type": "string", "maxLength": 20},
    "bounds": {"type": "integer", "minimum": -37, "maximum": 1205},
    "open bound": {"type": "integer", "minimum": 99},
    "exclusive": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "sliver": {"type": "number", "minimum": 0.25, "maximum": 0.75},
    "below zero": {"type": "number", "minimum": -2.5, "maximum": -0.5},
    "enum": {"enum": ["red", 'a "quoted" one', 3, 1.5, None, True, {"a": [1]}, "žluť\n🚀"]},
    "const": {"const": {"a": ["b", None]}},
    "types": {"type": ["integer", "null"]},
    "any of": {"anyOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "string", "maxLength": 4}]},
    "one of with siblings": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "oneOf": [{"required": ["a"]}, {"required": ["a", "b"], "properties": {"b": {"const": True}}}],
        "additionalProperties": False,
    }
    | {"oneOf": [{"required": ["a", "b"]}]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string", "maxLength": 5}}, "required": ["b"]},
        ]
    },
    "required": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]},
    "optional": {"type": "object", "properties": {n: {"type": "boolean"} for n in "abcdef"}},
    "required without a schema": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["z"]},
    "others": {
        "type": "object",
        "properties": {"ab": {"type": "integer"}, "abc": {"type": "null"}},
        "additionalProperties": {"type": "string", "maxLength": 3},
    },
    "odd names": {
        "type": "object",
        "properties": {'a "b"\\': {"type": "null"}, "ž 1": {"type": "null"}, "": {"type": "null"}},
        "required": ['a "b"\\', "ž 1", ""],
    },
    "tuple": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False, "minItems": 2},
    "open tuple": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "maxItems": 4},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "pattern": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}(x|y)?$"},
    "pattern with escapes": {"type": "string", "pattern": r'^["\\/\n]{3}\w\s\S[^a-y]$'},
    "loose pattern": {"type": "string", "pattern": "[ab]c|d+?e"},
    "date-time": {"type": "string", "format": "date-time"},
    "email": {"type": "string", "format": "email"},
    "reference": {"$defs": {"p": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2},
    "recursive": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": {"type": "null"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "itself": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    "reference with siblings": {
        "$defs": {"p": {"type": "integer"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/p", "maximum": 5, "minimum": 0}},
        "required": ["a"],
    },
    "nullable": {"type": "integer", "nullable": True, "x": 1} | {"nullable": False},
    "no type": {"properties": {"a": {"minimum": 3}}, "required": ["a"]},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_gives_what_it_allows(library, name):
    form = {"type": "json_schema", "json_schema": SCHEMAS[name]}
    assert build(OutputConstraint(format=form), context(None, None)).notices == []
    checker = jsonschema.Draft202012Validator(SCHEMAS[name], format_checker=jsonschema.FormatChecker())
    texts = [walked(library, constraint(form), seed) for seed in range(4)]
    assert any(ended for _, ended in texts)
    for text in (text for text, ended in texts if ended):
        checker.validate(json.loads(text))


ALIKE = [["1b11b1", "b11", "b1b1"], ["1a", "1b1a1", "1babba", "1bbb", "a11b", "aa", "b1a", "b1babb", "bbba1a"]]


@pytest.mark.parametrize("words", ALIKE)
def test_choices_that_begin_alike_are_not_mixed_up(library, words):
    forms = [
        {"type": "or", "elements": [{"type": "const_string", "value": word} for word in words]},
        {"type": "regex", "pattern": "|".join(words)},
        {"type": "json_schema", "json_schema": {"enum": words}},
        {"type": "json_schema", "json_schema": {"anyOf": [{"const": word} for word in words]}},
    ]
    for form in forms:
        assert {walked(library, constraint(form), seed)[0].strip('"') for seed in range(8)} <= {*words}


def test_bounds_of_many_digits_are_kept(library):
    for low, high in ((-153, 6193425), (2276, 5208875), (-1316, 6873538), (-420, 646883)):
        form = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": low, "maximum": high}}
        assert all(low <= int(walked(library, constraint(form), seed)[0]) <= high for seed in range(8))
