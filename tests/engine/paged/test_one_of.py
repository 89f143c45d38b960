"""`oneOf` in JSON schemas: what is generated is valid by exactly one alternative, as jsonschema judges it."""

import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lean_ovms.errors import GrammarInvalid, GrammarTooComplex
from lean_ovms.text.grammar.ebnf import Ebnf
from lean_ovms.text.grammar.json_schema import JsonValues
from lean_ovms.text.grammar.notations import GemmaValues, PythonValues, XmlValues
from tests.engine.paged.test_grammar import EOS, PIECES, WIDTH, Guidance, fits, grammar, written


@pytest.fixture(scope="module")
def guidance():
    return Guidance(PIECES, WIDTH, [EOS, 0])


def made(schema, kind=JsonValues):
    """The grammar's tag, and the places of `oneOf` that are not imposed."""
    ebnf = Ebnf()
    values = kind(ebnf, schema)
    body = values.value(schema)
    return grammar(ebnf.text(body)), {word for word in values.ignored if word.startswith("oneOf")}


def fields(needed, **properties):
    return {"type": "object", "properties": properties, "required": needed.split()}


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
EITHER = {
    "type": "object",
    "properties": {"a": WHOLE, "b": WHOLE},
    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
}
EXACT = [
    # schema, values that may be generated, values that may not
    ({"oneOf": [TEXT, WHOLE, {"type": "null"}]}, ["a", 1, None], [True, 1.5]),
    ({"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}, ["a", "b", "c"], ["d"]),
    ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, ["a", "c"], ["b"]),
    ({"oneOf": [{"enum": ["auto", "a/b"]}, TEXT]}, ["", "aut", "autos", "x", 'q"\\n'], ["auto", "a/b"]),
    ({"oneOf": [{"enum": ["", 1]}, TEXT]}, [1, "x"], [""]),
    ({"oneOf": [{"type": "string", "not": {"enum": ["a"]}}, {"const": "b"}]}, ["c"], ["a", "b"]),
    ({"oneOf": [{"type": "integer", "minimum": 10}, {"type": "integer", "maximum": 9}]}, [9, 10], []),
    ({"oneOf": [{"type": "number", "minimum": 5.5}, {"type": "integer", "maximum": 5}]}, [5, 6.5], [5.2]),
    ({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}]}, ["ab", "abc"], []),
    ({"oneOf": [{"type": ["string", "null"]}, {"type": ["null", "boolean"]}]}, ["a", True], [None]),
    ({"oneOf": [{"type": "boolean"}, {"const": True}]}, [False], [True]),
    (
        {"oneOf": [fields("kind r", kind={"const": "circle"}, r=NUMBER), fields("kind", kind={"const": "dot"})]},
        [{"kind": "circle", "r": 1}, {"kind": "dot"}],
        [{"kind": "dot", "r": 1}],
    ),
    ({"oneOf": [fields("a", a=WHOLE), fields("b", b=WHOLE)]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {}]),
    (EITHER, [{"a": 1}, {"b": 2}], [{"a": 1, "b": 2}, {}]),
    ({**EITHER, "additionalProperties": WHOLE}, [{"a": 1, "z": 2}, {"b": 2}], [{"a": 1, "b": 2}, {"z": 1}]),
    (
        {"oneOf": [fields("a", a=WHOLE, b=WHOLE), {**fields("a", a=WHOLE), "additionalProperties": False}]},
        [{"a": 1, "b": 2}],
        [{"a": 1}],
    ),
    (
        {"oneOf": [fields("k", k={"enum": [1, 2]}), fields("k", k={"enum": [2, 3]})]},
        [{"k": 1}, {"k": 3}],
        [{"k": 2}],
    ),
    ({"oneOf": [fields("a", a=WHOLE), fields("a b", a=WHOLE, b=TEXT)]}, [{"a": 1}], [{"a": 1, "b": "x"}]),
    (
        {"oneOf": [{"type": "array", "items": WHOLE, "minItems": 1}, {"type": "array", "items": TEXT, "minItems": 1}]},
        [[1], ["a", "b"]],
        [[], [1, "a"]],
    ),
    ({"oneOf": [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}]}, [[1], [1, 2]], []),
    ({"oneOf": [TEXT, {}]}, [1, [2]], ["a"]),
    ({"oneOf": [{"const": {"a": [1, None]}}, fields("a", a={"type": "array", "minItems": 3})]}, [{"a": [1, None]}], []),
    (
        {
            "$defs": {"t": fields("v n", v=WHOLE, n={"oneOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]})},
            "$ref": "#/$defs/t",
        },
        [{"v": 1, "n": {"v": 2, "n": None}}],
        [{"v": 1}],
    ),
    ({"oneOf": [{"anyOf": [TEXT, {"const": 1}]}, {"anyOf": [{"const": 1}, {"const": 2}]}]}, ["a", 2], [1]),
    ({"properties": {"b": False}, "required": ["a"], "type": "object"}, [{"a": 1}], [{"a": 1, "b": 2}]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), EXACT, ids=range(len(EXACT)))
def test_values_of_one_alternative_may_be_generated_and_no_others(guidance, schema, good, bad):
    tag, notices = made(schema)
    assert notices == set()
    for value in good:
        jsonschema.validate(value, schema)
        assert fits(guidance, tag, json.dumps(value)), value
    for value in bad:
        assert not fits(guidance, tag, json.dumps(value)), value


def test_an_excluded_text_cannot_be_written_with_escapes(guidance):
    tag, _ = made({"oneOf": [TEXT, {"const": "a"}]})
    assert not fits(guidance, tag, '"\\u0061"')
    assert fits(guidance, tag, '"b\\u0061"')
    assert fits(guidance, tag, '"\\n\\u0001a"')


NOT_KNOWN = [
    ({"oneOf": [NUMBER, {"type": "integer", "multipleOf": 3}]}, {"oneOf"}),
    ({"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}, {"oneOf"}),
    ({"oneOf": [TEXT, {"enum": ["a\\b"]}]}, set()),
    ({"oneOf": [TEXT, TEXT]}, {"oneOf"}),
    (fields("a", a=fields("b", b={"oneOf": [NUMBER, WHOLE]})), {"oneOf of a.b"}),
    ({"oneOf": [TEXT, fields("a", a=TEXT) | {"type": None}]}, {"oneOf"}),
]


@pytest.mark.parametrize(("schema", "notices"), NOT_KNOWN, ids=range(len(NOT_KNOWN)))
def test_what_cannot_be_separated_is_any_of_them_and_named(guidance, schema, notices):
    tag, found = made(schema)
    assert found == notices
    guidance.compile(tag)


def test_a_hundred_alternatives_with_a_constant_each_take_no_time():
    schema = {"oneOf": [fields("kind a", kind={"const": f"k{i}"}, a=TEXT) for i in range(99)]}
    assert made(schema)[1] == set()


@pytest.mark.parametrize("kind", [PythonValues, GemmaValues, XmlValues])
def test_other_notations_tell_what_they_cannot_leave_out(kind):
    assert made({"oneOf": [TEXT, {"const": "a"}]}, kind)[1] == {"oneOf"}
    assert made(EITHER, kind)[1] == set()


CONSTANTS = st.sampled_from(["a", "b", "ab", "", 1, 2, 1.5, True, None])
SCALARS = st.one_of(
    CONSTANTS.map(lambda value: {"const": value}),
    st.lists(CONSTANTS, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.sampled_from(
        [
            *(
                {"type": "string"},
                {"type": "string", "maxLength": 3},
                {"type": "string", "minLength": 4, "maxLength": 6},
            ),
            *(WHOLE, NUMBER, {"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {}),
            *({"type": "integer", "minimum": 0}, {"type": "integer", "maximum": -1}, {"$ref": "#/$defs/short"}),
            {"type": "array", "items": WHOLE, "maxItems": 2},
        ]
    ),
)
OBJECTS = st.builds(
    lambda properties, needed: {"type": "object", "properties": properties, "required": needed},
    st.dictionaries(st.sampled_from(["a", "b", "kind"]), SCALARS, max_size=3),
    st.lists(st.sampled_from(["a", "b", "kind", "z"]), unique=True, max_size=2),
)
ALTERNATIVES = st.lists(st.one_of(SCALARS, OBJECTS, OBJECTS), min_size=2, max_size=3)
BESIDE = st.sampled_from([{}, {"type": "object", "properties": {"a": TEXT, "b": WHOLE}}])


@settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(ALTERNATIVES, BESIDE, st.integers(0, 1 << 30))
def test_whatever_is_generated_is_valid_by_exactly_one(guidance, alternatives, beside, seed):
    schema = {**beside, "oneOf": alternatives, "$defs": {"short": {"type": "string", "maxLength": 2}}}
    try:
        tag, notices = made(schema)
    except (GrammarInvalid, GrammarTooComplex):
        return
    text = None if notices else written(guidance, tag, seed, 60)
    if text is not None:
        jsonschema.validate(json.loads(text), schema)
