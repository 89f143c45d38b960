"""patternProperties together with properties: every generated text ends, and satisfies both."""

import json
import random

import jsonschema
import numpy as np
import pytest

from lean_ovms.errors import GrammarInvalid
from lean_ovms.features.guidance.child.library import Guidance
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
