"""Schemas that llguidance does not enforce as they are written: every generated text ends, and is what they allow."""

import json
import random
from itertools import chain, combinations, product

import jsonschema
import numpy as np
import pytest

from lean_ovms.errors import GrammarInvalid
from lean_ovms.features.guidance.child.library import Guidance, _fits, _in_bytes, _match, read
from lean_ovms.features.guidance.child.schema_forms import COUNTS, FORMAT_LENGTHS, Rewriter
from lean_ovms.features.structured_output.schemas import closed
from tests.cases import few_fast
from tests.features.guidance.test_grammar import EOS, PIECES, WIDTH, allowed, begin, constraint

INT = {"type": "integer"}
TEN = {"type": "integer", "minimum": 10, "maximum": 99}
K = {"k": INT}
AT_K = {"^k$": TEN}
DECLARED = {"properties": K, "required": ["k"], "patternProperties": AT_K}
OBJECT = {"type": "object", **DECLARED}
SCHEMAS = {
    "the declared name": DECLARED,
    "optional": {"properties": {**K, "n": {"type": "null"}}, "patternProperties": AT_K},
    "several names": {"properties": {"k": INT, "v": INT}, "required": ["k"], "patternProperties": {"^(k|v)$": TEN}},
    "several patterns": {
        "properties": K,
        "required": ["k"],
        "patternProperties": {"^[k]$": {"type": "integer", "minimum": 10}, "^k{1}$": {"maximum": 99}},
    },
    "without a schema": {"properties": {"k": {}}, "required": ["k"], "patternProperties": AT_K},
    "others, too": {"properties": K, "required": ["k"], "patternProperties": {"^k[0-9]?$": TEN}},
    "one of each": {"properties": K, "required": ["k"], "patternProperties": {**AT_K, "^v$": {"type": "boolean"}}},
    "additional": {**DECLARED, "additionalProperties": {"type": "boolean"}},
    "nested": {"properties": {"o": OBJECT}, "required": ["o"]},
    "in a list": {
        "properties": {"l": {"type": "array", "minItems": 1, "maxItems": 2, "items": OBJECT}},
        "required": ["l"],
    },
    "defined": {"properties": {"o": {"$ref": "#/$defs/o"}}, "required": ["o"], "$defs": {"o": OBJECT}},
    "all of": {"allOf": [{"properties": K, "required": ["k"]}, {"patternProperties": AT_K}]},
    "all of, in each": {"allOf": [DECLARED, {"properties": {"n": INT}}]},
    "any of": {"anyOf": [OBJECT]},
    "not at all": {"properties": K, "required": ["k"], "patternProperties": {"^x$": False}},
    "required only": {"required": ["k"], "patternProperties": AT_K},
    "quoted": {"properties": {'k"ä\n': INT}, "required": ['k"ä\n'], "patternProperties": {'^k"ä\\n$': TEN}},
}


@pytest.fixture(scope="module")
def guidance():
    return Guidance(PIECES, WIDTH, [EOS, 0])


def walked(library, tag, seed, most=60):
    """Returns a random text in short tokens without spaces, which ends as soon as it may; None if it is too long."""
    dice, matcher, text = random.Random(seed), begin(library, tag), b""
    for _ in range(most):
        choice = [i for i in allowed(matcher) if i == EOS or (len(PIECES[i]) == 1 and PIECES[i].strip())]
        assert choice, text
        token = EOS if EOS in choice else dice.choice(choice)
        if matcher.consume(token):
            return text.decode()
        text += PIECES[token]
    return None


@pytest.mark.parametrize("name", few_fast(SCHEMAS))
def test_what_is_generated_fits_properties_and_patterns(guidance, name):
    schema = {"type": "object", **SCHEMAS[name]}
    tag = constraint({"type": "json_schema", "json_schema": schema})
    texts = [text for seed in range(6) if (text := walked(guidance, tag, seed)) is not None]
    assert texts
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


def test_a_declared_name_stays_possible_only_with_values_for_all_patterns(guidance):
    schema = {"type": "object", "properties": K, "patternProperties": {"^k$": {"type": "string"}}}
    tag = constraint({"type": "json_schema", "json_schema": schema})
    assert {walked(guidance, tag, seed) for seed in range(4)} == {"{}"}


def test_no_name_is_left_when_the_pattern_has_no_more(guidance):
    matcher = begin(
        guidance, constraint({"type": "json_schema", "json_schema": {"type": "object", **SCHEMAS["the declared name"]}})
    )
    for byte in b'{"k":12':
        matcher.consume(PIECES.index(bytes([byte])))
    row = np.zeros(WIDTH, np.float32)
    matcher.apply(row)
    assert row[PIECES.index(b",")] < 0 <= row[PIECES.index(b"}")]


def test_a_pattern_that_is_none_is_refused(guidance):
    schema = {"type": "object", "properties": K, "patternProperties": {"(": INT}}
    with pytest.raises(GrammarInvalid):
        guidance.compile(constraint({"type": "json_schema", "json_schema": schema}))


def accepts(schema, text):
    """Returns whether a schema, closed and rewritten, allows a JSON text; True of no text if it cannot be compiled."""
    try:
        return _fits(_in_bytes(Rewriter(_match).schema(closed(schema)[0])), text)
    except GrammarInvalid:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("required", [(), "b", "ac", "abc"])
def test_numbers_of_properties_are_counted_beside_optional_ones(required):
    """Each set of properties, for each least and greatest number of them."""
    sets = chain.from_iterable(combinations("abc", size) for size in range(4))
    texts = [json.dumps(dict.fromkeys(names, 1)) for names in sets]
    for numbers in product((None, 0, 1, 2, 3, 4), repeat=2):
        counts = {key: number for key, number in zip(COUNTS, numbers, strict=True) if number is not None}
        schema = {"type": "object", "properties": dict.fromkeys("abc", INT), "required": [*required], **counts}
        valid = jsonschema.Draft202012Validator(schema).is_valid
        assert [accepts(schema, text) for text in texts] == [valid(json.loads(text)) for text in texts], counts


def test_definitions_other_types_and_nested_objects_remain_in_a_counted_object():
    properties = {**K, "n": {"$ref": "#/$defs/node"}, "m": INT}
    node = {"type": ["object", "null"], "properties": properties, "minProperties": 2}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert all(accepts(schema, text) for text in ("null", '{"k": 1, "m": 2}', '{"n": null, "m": 2}'))
    assert not any(accepts(schema, text) for text in ("7", '{"m": 2}', '{"k": 1, "n": {"m": 2}}'))


@pytest.mark.parametrize(
    "more",
    [{"properties": dict.fromkeys("abcdefghijklmno", INT)}, {"properties": {**K, "m": INT, "n": INT}, "anyOf": [True]}],
    ids=["many", "beside others"],
)
def test_a_number_of_properties_that_is_not_counted_leaves_the_rest_enforced(more):
    schema = closed({"type": "object", "minProperties": 2, "maxProperties": 9, **more})[0]
    done = read({"format": {"type": "json_schema", "json_schema": schema}})
    assert set(done.notices) <= set(COUNTS)
    assert "minProperties" in done.notices
    assert not any(key in done.text for key in COUNTS)
    assert '"properties"' in done.text


LONGEST = {
    "date-time": "2026-12-01T23:59:59.123456789+23:59",
    "time": "23:59:59.123456789+23:59",
    "duration": "P" + "1" * 38 + "D",
    "hostname": ".".join(["h" * 62] * 4),
    "email": "x@" + ".".join(["h" * 62] * 4),
}


@pytest.mark.parametrize("style", ["json", "python_arguments"])
@pytest.mark.parametrize("name", FORMAT_LENGTHS)
def test_texts_in_formats_end(name, style):
    """A model must not be able to write the digits of a fraction of a second forever."""
    text = LONGEST[name]
    assert len(text) <= FORMAT_LENGTHS[name]
    for given, limit in ((None, FORMAT_LENGTHS[name]), (5000, FORMAT_LENGTHS[name]), (9, 9)):
        schema = {"type": "string", "format": name, **({} if given is None else {"maxLength": given})}
        arguments = {"properties": {"a": schema}}
        written = read({"format": {"type": "json_schema", "json_schema": arguments, "style": style}}).text
        assert f'"maxLength": {limit}' in written
    assert accepts({"type": "string", "format": name}, json.dumps(text))


def test_a_format_does_not_shorten_strings_that_must_be_longer():
    written = read({"format": {"type": "json_schema", "json_schema": {"format": "email", "minLength": 300}}}).text
    assert "maxLength" not in written
