"""Schemas to grammars: what is refused, what is not imposed and said so, and what it costs."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import pytest

from lean_ovms.errors import GrammarInvalid, GrammarTooComplex
from lean_ovms.text.grammar.ebnf import Ebnf, branches, char_class, literal, without_prefix
from lean_ovms.text.grammar.json_schema import JsonValues
from lean_ovms.text.grammar.numbers import integer, number
from lean_ovms.text.grammar.regex import NotSupported, pattern
from lean_ovms.text.grammar.schema_merge import Root, merge, resolve_reference
from lean_ovms.text.grammar.schema_validity import allows, allows_each, among
from lean_ovms.text.grammar.sentencepiece import rewrite_grammar, to_token_text


def values(schema: Any) -> tuple[str, set[str]]:
    """(the grammar, what it does not impose)"""
    ebnf = Ebnf()
    made = JsonValues(ebnf, schema)
    return ebnf.text(made.value(schema)), made.ignored


WRONG: list[Any] = [
    False,
    5,
    {"type": "nope"},
    {"type": 5},
    {"type": ["string", 5]},
    {"enum": []},
    {"enum": "red"},
    {"type": "string", "enum": [1, 2]},
    {"anyOf": []},
    {"oneOf": {}},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"properties": []},
    {"properties": {"a": 7}},
    {"required": "a"},
    {"properties": {"a": {}}, "required": ["b"], "additionalProperties": False},
    {"type": "string", "minLength": -1},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "string", "maxLength": "3"},
    {"type": "string", "pattern": 5},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "integer", "minimum": "5"},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"type": "array", "prefixItems": [{}], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": {}},
    {"$ref": "#/nope"},
    {"$ref": "https://example.com/schema"},
]


@pytest.mark.parametrize("schema", WRONG)
def test_a_wrong_schema_is_invalid(schema: Any) -> None:
    with pytest.raises(GrammarInvalid):
        values(schema)


WORDS = ["type", "enum", "required", "properties", "items", "minLength", "minItems", "minimum", "not", "anyOf", "$ref"]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("value", [5, "x", [[1]], {"a": 5}, None, [None], {}])
def test_whatever_is_in_an_alternative_nothing_else_than_an_error_for_the_client_comes_out(
    word: str, value: Any
) -> None:
    part = {"type": ["object", "array", "string", "number"], word: value}
    for schema in (
        {"oneOf": [part, {"type": "object", "required": ["a"]}, {"const": {"a": [1, "b"]}}]},
        {"enum": [{"a": 1}, [1], "b", 2.5], word: value},
        {"oneOf": [{"properties": {"a": part}, "required": ["a"]}, {"properties": {"a": {"const": "b"}}}]},
    ):
        with contextlib.suppress(GrammarInvalid, GrammarTooComplex):
            values(schema)


NOT_IMPOSED: list[tuple[Any, set[str]]] = [
    ({"type": "array", "uniqueItems": True}, {"uniqueItems"}),
    ({"type": "array", "uniqueItems": False}, set()),
    ({"type": "integer", "multipleOf": 5}, {"multipleOf"}),
    ({"type": "integer", "multipleOf": 1}, set()),
    ({"type": "object", "properties": {"a": {}}, "not": {"required": ["a"]}}, {"not"}),
    ({"type": "object", "properties": {"a": {}}, "if": {}, "then": {"required": ["a"]}}, {"then"}),
    ({"type": "string", "maxLength": 100000}, {"maxLength"}),
    ({"type": "string", "minLength": 1000}, {"minLength"}),
    ({"type": "string", "maxLength": 256}, set()),
    ({"type": "array", "maxItems": 1000}, {"maxItems"}),
    ({"type": "string", "pattern": "(?=a)b"}, {"pattern"}),
    ({"type": "string", "pattern": "a{1,1000}"}, {"pattern"}),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, {"maxLength"}),
    ({"type": "string", "format": "hostname"}, set()),
    ({"type": "object", "patternProperties": {"^a": {}}}, {"patternProperties"}),
    ({"type": "number", "exclusiveMinimum": 0}, {"exclusiveMinimum"}),
    ({"type": "integer", "exclusiveMinimum": 0}, set()),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, {"minProperties"}),
    ({"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 1}, set()),
]


@pytest.mark.parametrize(("schema", "ignored"), NOT_IMPOSED)
def test_what_is_not_imposed_is_reported(schema: Any, ignored: set[str]) -> None:
    assert values(schema)[1] == ignored


def test_recursion_is_a_rule_that_names_itself() -> None:
    text, _ = values({"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"})
    assert text.startswith("root ::= n\n")
    assert "item ::= n\n" in text


def test_two_hundred_optional_properties_stay_linear() -> None:
    size = [len(values({"properties": {f"p{i}": {"type": "string"} for i in range(n)}})[0]) for n in (50, 100, 200)]
    assert size[2] - size[1] < 2.2 * (size[1] - size[0])


def deep(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def bush(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [{"properties": {"a": schema}}, {"properties": {"b": schema}}]}
    return schema


def doubled(depth: int) -> Any:
    """Each definition refers to the next one twice."""
    defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": {**defs, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("schema", [deep(100), bush(14), {"allOf": [bush(12), bush(12)]}, doubled(25)])
def test_a_schema_that_explodes_is_too_complex_and_found_out_soon(schema: Any) -> None:
    began = time.process_time()
    with pytest.raises(GrammarTooComplex):
        values(schema)
    assert time.process_time() - began < 2


FIRST, SECOND = ({"enum": [str(number) for number in range(start, start + 7000)]} for start in (0, 3500))


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [FIRST, {"oneOf": [FIRST, {"type": "string", **SECOND}]}, {**FIRST, "not": SECOND}],
    ids=("alone", "oneOf", "not"),
)
def test_thousands_of_listed_values_are_not_compared_each_with_each(schema: Any) -> None:
    """7000 in an enum, 60 KB of a request, took 14 s of the front end's CPU time."""
    began = time.process_time()
    grammar, ignored = values(schema)
    assert time.process_time() - began < 3
    assert (len(grammar) > 3500, ignored) == (True, set())


@pytest.mark.parametrize("listed", [["a", "b"], ["a", 1], [], [True, "b"]])
@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["a", "b"]},
        {"type": "string", "enum": ["a"]},
        {"type": "integer", "enum": ["a"]},
        {"not": {"enum": ["a"], "title": "t"}},
        {"not": {"enum": ["a", 1]}},
        {"enum": ["a"], "maxLength": 0},
    ],
)
def test_many_values_have_the_verdicts_of_each(schema: Any, listed: list[Any]) -> None:
    assert allows_each(schema, listed, schema) == [allows(schema, value, schema) for value in listed]


def test_what_is_equal_in_python_alone_is_not_among_listed_values() -> None:
    assert among(1, [True, 1.0])
    assert not among(1, [True, [1], "1"])
    assert not among([False], [[0], [0.0]])
    assert among({"a": [0]}, [{"a": [False]}, {"a": [0.0]}])


def test_pointers_reach_into_lists_and_unescape() -> None:
    whole = {"a/b": [{"c~d": 1}], "e f": 2}
    root = Root(whole)
    assert resolve_reference(root, "#/a~1b/0/c~0d") == 1
    assert resolve_reference(root, "#/e%20f") == 2
    assert resolve_reference(root, "#") is whole
    with pytest.raises(GrammarInvalid):
        resolve_reference(root, "#/a~1b/1")


def test_merging_keeps_the_narrower_of_two_bounds_and_all_that_is_required() -> None:
    one = {"type": "integer", "minimum": 1, "maximum": 9, "required": ["a"], "enum": [1, 2, 3]}
    other = {"type": "number", "minimum": 3, "maximum": 12, "required": ["a", "b"], "enum": [2, 3, 4]}
    assert merge(one, [other], Root({})) == {
        "type": ["integer"], "minimum": 3, "maximum": 9, "required": ["a", "b"], "enum": [2, 3],
    }  # fmt: skip


def test_equal_rules_are_written_once() -> None:
    text, _ = values({"properties": {n: {"type": "string", "maxLength": 5} for n in "abc"}})
    assert len(re.findall(r"^string", text, re.MULTILINE)) == 1


def test_literals_and_classes_escape_what_they_must() -> None:
    assert literal('a"\\\n\x01ž😀') == '"a\\"\\\\\\n\\u0001ž😀"'
    assert literal("\x7fb\x7fz") == '"\\u007f" "b\\u007fz"'
    assert char_class([(10, 10), (48, 57)]) == "[0-9\\u000a]"
    assert char_class([(45, 45), (93, 94), (97, 122)]) == "[\\-\\]-\\^a-z]"
    assert without_prefix(literal("<tool>\nrest"), "<tool>\n") == '"rest"'


# --- alternatives: XGrammar 0.1.31 takes texts that are none of them if they begin alike


def test_words_become_a_tree_whose_branches_begin_differently() -> None:
    assert Ebnf().words(["b1", "b1b1", "a", "b1"]) == '("a" | "b1" ("b1")?)'
    assert Ebnf().words(["one"]) == '"one"'
    assert Ebnf().words(["abc", "abd", "x"]) == '("ab" ("c" | "d") | "x")'


def test_alternatives_are_rules_that_cannot_be_put_in_the_place_of_their_names() -> None:
    ebnf = Ebnf()
    assert ebnf.choice(['"a"']) == '"a"'
    assert ebnf.choice(['"a"', '"ab"', '""']) == "either"
    assert ebnf.text("either").splitlines()[1:] == [
        'nothing ::= ""',
        'one ::= "a" nothing',
        'one_2 ::= "ab" nothing',
        'either ::= one | one_2 | ""',
    ]


def test_sequences_become_a_tree_too() -> None:
    assert branches([["a", "b"], ["a", "c"], ["d"]]) == "(a (b | c) | d)"
    assert branches([["a"], ["a", "b"]]) == "a (b)?"


# --- numbers: every integer near the bounds, by Python's re


def as_regex(expression: str) -> re.Pattern[str]:
    """The expression as a Python regular expression: literals, classes, groups and counts are enough for numbers."""
    text = re.sub(r'"((?:[^"\\]|\\.)*)"', lambda m: re.escape(m[1]), expression)
    return re.compile(text.replace(" ", ""))


BOUNDS = [(0, 0), (-5, 123), (7, 7), (99, 1000), (-1000, -99), (-3, 3), (10, 19), (1, 10), (None, -7), (95, None)]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_integers_are_all_those_between_the_bounds(low: int | None, high: int | None) -> None:
    found = integer(low, high)
    assert found is not None
    allowed = as_regex(found)
    for value in range(-1200, 1300):
        inside = (low is None or value >= low) and (high is None or value <= high)
        assert bool(allowed.fullmatch(str(value))) == inside, value


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (2.5, 7.25), (0.2, 0.8), (-0.8, -0.2), (-3.5, 2)])
def test_numbers_lie_between_the_bounds(low: float, high: float) -> None:
    found = number(low, high)
    assert found is not None
    allowed = as_regex(found)
    hits = 0
    for step in range(-5000, 9000):
        text = f"{step / 1000:g}"
        if allowed.fullmatch(text) or allowed.fullmatch(f"{step / 1000:.4f}"):
            hits += 1
            assert low <= step / 1000 <= high
    assert hits


def test_impossible_bounds_have_no_grammar() -> None:
    assert integer(5, 4) is None
    assert number(5, 4) is None
    assert integer(0.2, 0.8) is None


# --- patterns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("^a$", "[a]"),
        ("a|b", "either"),
        ("[a-c]{2}", "([a-c]){2,2}"),
        (r"\d+", "([0-9]){1,}"),
        ("(?:ab)?", "(([a] [b])){0,1}"),
        ("(?P<n>a)", "([a])"),
        ('"', '"\\\\\\""'),
        ("", '""'),
    ],
)
def test_patterns_become_grammars_of_a_strings_inside(text: str, expected: str) -> None:
    assert pattern(text, Ebnf()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "(?=a)",
        "(?<!a)b",
        r"\1",
        r"\bword",
        r"\p{L}",
        "a{1,9999}",
        "(a",
        "a)",
        "[a",
        "*a",
        "a**b{",
        "(?i)a",
        "a^b",
        "[]",
    ],
)
def test_what_a_grammar_cannot_say_is_not_supported(text: str) -> None:
    with pytest.raises(NotSupported):
        pattern(text, Ebnf())


@pytest.mark.slow
def test_a_long_pattern_takes_linear_time() -> None:
    began = time.process_time()
    for text in ("a" * 20000, "[a-z]" * 5000, "a|" * 10000, "((a))" * 4000, "\\" * 20001, "a{" * 10000):
        try:
            pattern(text, Ebnf())
        except NotSupported:
            continue
    assert time.process_time() - began < 5


# --- grammars in token text


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ('root ::= "a b\\n" "c"', 'root ::= "a▁b" "c"'),
        ("root ::= [ \\t]{0,24}", "root ::= [\\t▁]{0,24}"),
        ("root ::= [^ab]", 'root ::= ([^<ab] | "<" [^<0ab])'),
        ("root ::= [^<a]", "root ::= [^<a]"),
        ('root ::= "až"', 'root ::= "a" ("ž" | "<0xC5><0xBE>")'),
        ('root ::= TagDispatch(("ž ", r))', 'root ::= TagDispatch(("ž▁", r))'),
        ("root ::= [ -!]", "root ::= [ -!▁]"),
        ('root ::= "\\"[ x" [\\]]', 'root ::= "\\"[▁x" [\\]]'),
        ('root ::= "open', 'root ::= "open'),
    ],
)
def test_grammars_are_rewritten_for_sentencepiece(grammar: str, expected: str) -> None:
    assert rewrite_grammar(grammar, ours=True) == expected


def test_a_clients_line_ends_are_said_as_byte_tokens() -> None:
    assert rewrite_grammar('root ::= "a\\n b"', ours=False) == 'root ::= "a<0x0A>▁b"'
    assert to_token_text("a\n b") == "a<0x0A>▁b"


def test_plain_patterns_need_no_escapes() -> None:
    assert pattern('"a b"', Ebnf(), plain=True) == '"\\"" "a" " " "b" "\\""'
    assert pattern("[a-c]", Ebnf(), plain=True) == "[a-c]"
