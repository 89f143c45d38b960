"""Requests that could break the engine, sent to the demo model in a server process (README.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lean_ovms.api.generation.sampling import SAMPLING
from lean_ovms.config import DEMO_MODEL
from tests.threats.target import CHAT, HI, Target, in_use, start_target

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    flags = ["--model_path", str(DEMO_MODEL), "--grammar_timeout_s", "1", "--grammar_cache_mb", "16"]
    with start_target(tmp_path_factory.mktemp("model"), *flags) as target:
        target.post(CHAT, schema({"type": "object"}))  # starts the grammar helper
        target.settle()
        yield target


@pytest.fixture
def target(model_target: Target) -> Iterator[Target]:
    """The shared server in use. Afterwards it has the same engine process, and nothing is left in it."""
    with in_use(model_target) as target:
        yield target


def schema(form: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HI, "max_tokens": 4, "guided_json": form, **fields}


TOLD_NOBODY = ("Traceback", "site-packages", ".py", ".cpp", ".cc:", "/work", "/usr", "/home", "/tmp", "0x")


def check(target: Target, ask: dict[str, Any], path: str = CHAT) -> int:
    """Returns the status, and checks that it is not a server error, and that an error contains no path."""
    answer = target.post(path, ask)
    assert answer.status in (200, 400), answer.body
    if answer.status == 400:
        assert not any(word in answer.error["message"] for word in TOLD_NOBODY)
    return answer.status


def test_t02_prompts_of_nothing_or_of_special_tokens_only(target: Target) -> None:
    special = [0, 1, 2, 3]
    for prompt in ("", "\x00", " ", "\n", "<|im_end|>", "<|im_start|><|im_end|>" * 20, special, [special] * 3, [0]):
        status = check(target, {"model": "m", "prompt": prompt, "max_tokens": 2}, "/v1/completions")
        assert prompt or status == 400
    check(target, {"model": "m", "messages": [{"role": "user", "content": ""}], "max_tokens": 2})


def test_t03_token_ids_that_no_vocabulary_has(target: Target) -> None:
    for ids in ([-1], [10**6], [2**31 - 1], [2**32 - 1], [1, 2, 10**6]):
        for extra in ({}, {"repetition_penalty": 1.5}, {"echo": True}):
            assert check(target, {"model": "m", "prompt": ids, "max_tokens": 2, **extra}, "/v1/completions") == 400
        assert check(target, {"model": "m", "messages": HI, "stop_token_ids": ids}) == 400


INVALID = [
    {"type": "nothing"},
    {"type": 5},
    {"$ref": "#/nowhere"},
    {"$ref": "#"},
    {"$ref": "http://localhost/x"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"type": "string", "pattern": "(("},
    {"type": "string", "pattern": "(?<=a)b"},
    {"type": "string", "minLength": -1},
    {"type": "string", "minLength": 10**30},
    {"type": "object", "properties": 5},
    {"type": "object", "required": [1]},
    {"enum": []},
    {"anyOf": []},
    {"allOf": [{"type": "string"}, {"type": "object"}]},
    False,
    [],
    "x",
    5,
]


def test_t04_schemas_that_are_none(target: Target) -> None:
    for form in INVALID:
        check(target, schema(form))
        response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": form}}
        check(target, {"model": "m", "messages": HI, "max_tokens": 2, "response_format": response_format})


PATTERNS = ["(", "[", "a{2,1}", "*", "(?P<a", "\\", "(a+)+b", "(a|a)*b", "(.*)*x", "a{1,100000}",
            "((a{1,99}){1,99}){1,99}", "(" * 5000 + ")" * 5000, "\\p{Nonsense}", "(?<!a)b", "\ud800",
            "x" * 60_000]  # fmt: skip


def test_t05_regular_expressions_that_are_wrong_or_catastrophic(target: Target) -> None:
    for pattern in PATTERNS:
        check(target, {"model": "m", "messages": HI, "max_tokens": 2, "guided_regex": pattern})


def test_t06_malformed_grammars_right_after_valid_ones(target: Target) -> None:
    for _ in range(3):
        good = {"model": "m", "messages": HI, "max_tokens": 2, "guided_grammar": 'root ::= "a" | "b"'}
        assert target.post(CHAT, good).status == 200
        for text in ("root ::= (", "root ::= missing", "::=", 'x ::= "a"', 'root ::= "\\', "\x00"):
            assert check(target, {**good, "guided_grammar": text}) == 400
        assert target.post(CHAT, good).status == 200


def nested(depth: int) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        form = {"type": "object", "properties": {"a": form}, "required": ["a"]}
    return form


EXPENSIVE = {
    "deep": {"guided_json": nested(200)},
    "wide": {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}},
    "long": {"guided_json": {"type": "string", "minLength": 100_000}},
    "enum": {"guided_json": {"enum": ["x" * 20 + str(i) for i in range(2000)]}},
    "counts": {"guided_regex": "(a{1,300}){1,300}"},
    "brackets": {"guided_grammar": "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000},
    "explosion": {"guided_grammar": 'root ::= (("a" | "b"){0,200} "c"?){0,200}'},
    "size": {"guided_grammar": 'root ::= "' + "a" * 10**6 + '"'},
}


def test_t07_grammars_that_would_stall_everybody_are_refused_or_bounded(target: Target) -> None:
    for fields in EXPENSIVE.values():
        with_steps = target.metric("vllm:generation_tokens_total")
        check(target, {"model": "m", "messages": HI, "max_tokens": 2, **fields})
        assert target.metric("vllm:generation_tokens_total") > with_steps - 1


SLOW_STEPS = {
    "empty": {"guided_regex": "((.?){50}){50}"},
    "many": {"guided_regex": "((.?){50}){50}", "n": 20},
    "long": {"guided_regex": "(.?.?.?){300}"},
    "deep": {"guided_regex": "(((.?){12}){12}){12}"},
    "ambiguous": {"guided_grammar": 'root ::= e\ne ::= e e e | [a-z] | ""'},
}


def test_t07_grammars_that_compile_fast_and_step_slowly_are_refused(target: Target) -> None:
    for fields in SLOW_STEPS.values():
        answer = target.post(CHAT, {"model": "m", "messages": HI, "max_tokens": 50, "temperature": 1, **fields})
        assert answer.status == 400, answer.body
        assert answer.error["param"] == next(iter(fields))
        assert "too complex" in answer.error["message"]


def test_t07_a_stream_of_unique_schemas_fills_no_memory(target: Target) -> None:
    for at in range(36):
        if at == 12:
            before_kb = resident_kb(target)
        assert (
            target.post(CHAT, schema({"type": "object", "properties": {f"p{at}": {"type": "integer"}}})).status == 200
        )
    assert resident_kb(target) < before_kb + 64_000


def resident_kb(target: Target) -> int:
    """Returns the memory of the engine child."""
    with open(f"/proc/{target.engine()}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


EXTREMES = (b"-1", b"-2147483649", b"2147483648", b"4294967296", b"9223372036854775808", b"18446744073709551616",
            b"1e308", b"-1e308", b"1e999", b"1" + b"0" * 400, b"NaN", b"-0.0", b"1e-320")  # fmt: skip


def test_t20_extreme_numbers_do_not_reach_the_engine(target: Target) -> None:
    for name in [row.name for row in SAMPLING if row.kind in ("number", "int", "uint")]:
        for value in EXTREMES:
            data = json.dumps({"model": "m", "messages": HI, "max_tokens": 2})[:-1].encode()
            answer = target.post(CHAT, data + b', "' + name.encode() + b'": ' + value + b"}")
            assert answer.status in (200, 400), (name, value, answer.body)


def test_t27_no_answer_names_files_or_has_traces(target: Target) -> None:
    asks = [{}, {"model": "m"}, {"model": "m", "messages": 5}, schema(5), schema({"$ref": "file:///etc/passwd"})]
    asks += [
        {"model": "m", "messages": HI, "guided_grammar": "x"},
        {"model": "m", "messages": HI, "best_of": 5, "n": 9},
    ]
    asks += [{"model": "m", "messages": [{"role": "user", "content": "x" * 10**6}]}]
    for ask in asks:
        body = target.post(CHAT, ask).body.decode()
        assert not any(word in body for word in TOLD_NOBODY)
