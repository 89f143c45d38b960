"""The registry, the choice by chat template, and how the two parts of a parser work together."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

from lean_ovms.text import parsers
from lean_ovms.text.parsers import detect, detections, index, load, make, names
from lean_ovms.text.parsers.base import ModelFamily
from lean_ovms.text.parsers.json_calls import JsonCalls
from lean_ovms.text.parsers.literals import literal_to_json, python_text
from lean_ovms.text.parsers.values import kinds_of, typed
from lean_ovms.types import Event, Reasoning, Text, ToolCallDelta, ToolCallStart

DATA = Path(__file__).parents[2] / "data" / "chat_templates"
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_names_lists_only_families() -> None:
    assert "hermes3" in names().tool
    assert "qwen3" in names().reasoning
    assert not {"base", "plain", "family", "json_families"} & {*names().tool, *names().reasoning}


def test_each_family_is_one_row_of_one_module() -> None:
    found = [name for module in pkgutil.iter_modules(parsers.__path__) for name in rows(module.name)]
    assert sorted(found) == sorted({*names().tool, *names().reasoning})
    for name, entry in index().items():
        family = rows(entry.module)[name]
        readers = {"tools": family.tools, "reasoning": family.thinking}
        assert entry.reads == {what for what, reader in readers.items() if reader is not None}, name


def rows(module: str) -> dict[str, ModelFamily]:
    return getattr(importlib.import_module(f"{parsers.__name__}.{module}"), "FAMILIES", {})


def test_a_tool_parser_has_a_form_and_each_detection_finds_a_parser_that_exists() -> None:
    for name in names().tool:
        assert load(name).form is not None, name
    for name, rule in detections().items():
        assert rule.reasoning in (None, *names().reasoning), name


def test_a_row_makes_a_syntax_of_its_own() -> None:
    made = JsonCalls.variant(tags=("<x>",), one_call=True)
    assert (made.tags, made.one_call) == (("<x>",), True)
    assert (JsonCalls.tags, JsonCalls.one_call) == ((), False)


@pytest.mark.parametrize("wrong", [{"noize": ("</s>",)}, {"noise": "</s>"}, {"one_call": 1}, {"start_bracket": None}])
def test_a_row_with_a_wrong_name_or_type_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=f"JsonCalls has no {next(iter(wrong))} that is a"):
        JsonCalls.variant(**wrong)


@pytest.mark.parametrize("call", [lambda: load("base"), lambda: make("nope", None, tools=TOOLS)])
def test_an_unknown_name_is_refused_with_the_list(call: object) -> None:
    with pytest.raises(ValueError, match=r"known are .*(qwen3|hermes3)"):
        call()  # type: ignore[operator]


def test_without_parsers_everything_is_text() -> None:
    parser = make(None, None, tools=TOOLS)
    assert parser.feed("<think>") == [Text("<think>")]
    assert parser.feed("") == []
    assert parser.finish() == []
    assert not parser.keep_special_tokens


def test_a_name_goes_out_before_the_arguments_and_arguments_as_they_come() -> None:
    parser = make("hermes3", None, tools=TOOLS)
    assert parser.feed('<tool_call>\n{"name": "f') == []
    (start,) = parser.feed('"')
    assert isinstance(start, ToolCallStart)
    assert (start.index, start.name) == (0, "f")
    assert parser.feed(', "arguments": {"a": "b') == [ToolCallDelta(0, '{"a": "b')]
    assert parser.feed(" c") == [ToolCallDelta(0, " c")]
    assert parser.feed('"}}\n</tool_call>') == [ToolCallDelta(0, '"}')]
    assert parser.finish() == []


def test_ids_are_unique_and_look_like_openais() -> None:
    events = make("hermes3", None, tools=TOOLS).feed('<tool_call>{"name": "f"}</tool_call>' * 50)
    ids = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert len(set(ids)) == 50
    assert all(len(i) == 29 and i.startswith("call_") and i[5:].isalnum() for i in ids)


def test_what_came_with_one_chunk_leaves_as_one_event_per_kind() -> None:
    parser = make("hermes3", "qwen3", tools=TOOLS)
    assert parser.feed("<think>a < b</think>c < d") == [Reasoning("a < b"), Text("c < d")]


def test_blanks_alone_are_an_answer_when_no_call_came() -> None:
    parser = make("hermes3", None, tools=TOOLS)
    assert parser.feed(" \n") == []
    assert parser.finish() == [Text(" \n")]


def test_finish_twice_says_nothing_twice() -> None:
    parser = make("hermes3", None, tools=TOOLS)
    parser.feed("a<tool_")
    assert parser.finish() == [Text("<tool_")]
    assert parser.finish() == []


RULES = [
    ("x <|channel|> y", ("gptoss", "gptoss")),
    ("<|start|><|message|><|eom|><|eot|>", ("onyx", "onyx")),
    ("<|tool_call>call:", ("gemma4", "gemma4")),
    ("<parameter=a></parameter><function=b>", ("qwen3coder", None)),
    ("<parameter=a></parameter><function=b></think>", ("qwen3coder", "qwen3")),
    ('<param name="', ("minicpm5", "minicpm5")),
    ("keep_past_thinking", ("lfm2", None)),
    ("<|tool_call_start|> message.thinking", ("lfm2", "lfm2")),
    ("functools", ("phi4", None)),
    ("[TOOL_CALLS][ARGS]", ("devstral", None)),
    ("[TOOL_CALLS]", ("mistral", None)),
    ("[AVAILABLE_TOOLS] [/AVAILABLE_TOOLS]", ("mistral", None)),
    ("[AVAILABLE_TOOLS]", (None, None)),
    ("<|python_tag|>", ("llama3", None)),
    ("<tool_call></tool_call>", ("hermes3", None)),
    ("<tool_call></tool_call><think>", ("hermes3", "qwen3")),
    ("<tool_call></tool_call>content.split('</think>')", ("hermes3", "qwen3")),
    ("<think>", (None, "qwen3")),
    ("content.split('</think>')", (None, "qwen3")),
    ("plain", (None, None)),
    ("<tool_call></tool_call><arg_key><think>", ("glm4_moe", "qwen3")),
    ("<｜tool▁calls▁begin｜>```json content.split('</think>')", ("deepseek_v3", "qwen3")),
    ("<｜tool▁calls▁begin｜>content.split('</think>')", ("deepseek_v31", "qwen3")),
    ("'｜DSML｜' + 'function_calls>' tool_calls", ("deepseek_v32", None)),
    ("'｜DSML｜' + 'tool_calls>' <think>", ("deepseek_v4", "deepseek_v4")),
    ("<|tool_calls_section_begin|>", ("kimi_k2", None)),
    ("<|action_start|><|plugin|>", ("internlm2", None)),
    ("<tool_calls></tool_calls>", ("jamba", None)),
    ("<tool_calls></tool_calls><|extra_0|>", ("hunyuan_a13b", "hunyuan_a13b")),
    ("<tool_call></tool_call><response></response>", ("ernie45", "ernie45")),
    ("<tool_call></tool_call><tool_response></tool_response>", ("hermes3", None)),
    ("<start_function_call>call:", ("functiongemma", None)),
    ("<|START_ACTION|>", ("cohere_command", None)),
    ("<|START_ACTION|><|START_THINKING|>", ("cohere_command", "cohere_command")),
    ("<|function_call_library|> <function_call>", ("granite_20b_fc", None)),
    ("<|tools_prefix|>", ("apertus", None)),
    ("<|tools_prefix|><|inner_prefix|>", ("apertus", "apertus")),
    ("<｜tool_calls_begin｜>", ("step3", "deepseek_r1")),
    ("<function_calls>", ("olmo3", None)),
    ("<|tool_call|>", ("granite", None)),
    ("make calls in a single JSON array <|python_tag|><tool_call></tool_call>", ("xlam", None)),
    ("<minimax:tool_call><think>", ("minimax_m2", "minimax_m2")),
    ("<seed:tool_call><parameter=a></parameter><function=b>", ("seed_oss", "seed_oss")),
    ("<dots_function_call>", ("dots", None)),
    ("<ifm|tool_calls> <ifm|think>", ("k2_horizon", "k2_horizon")),
    ("'<|plamo:begin_tool_requests:plamo|>'", ("plamo3", "plamo3")),
    ("<|message_model|> <|content_text|>", ("inkling", "inkling")),
    ("<|open|><|close|><|sep|>", ("kimi_k3", "kimi_k3")),
    ("]<]minimax[>[ <tool_call></tool_call>", ("minimax_m3", "minimax_m3")),
    ("'｜DSML｜' + ' calls>' <think>", ("deepseek_v41", "deepseek_v41")),
    ("<|message_sep|> function call<|role_sep|>", ("gigachat3", None)),
    ("<|role_sep|> <|function_call|>", ("gigachat31", None)),
    ("<longcat_tool_call>", ("longcat", None)),
    ("<longcat_tool_call> /think_on", ("longcat", "longcat")),
    ("'<tool_calls' + S + '<tool_call' + S + '<tool_sep' + S + '<arg_key' + S", ("hy_v3", "hy_v3")),
    ("'<｜hy_User' '<tool_calls' + S + '<tool_call' + S + '<arg_key' + S", ("hy_v4", "hy_v4")),
]


@pytest.mark.parametrize(("source", "found"), RULES)
def test_detection_by_the_template(source: str, found: tuple[str | None, str | None]) -> None:
    assert detect(source) == found


def test_no_two_families_have_the_same_place_in_the_order() -> None:
    ranks = [rule.rank for rule in detections().values()]
    assert ranks == sorted(set(ranks))


def test_the_family_with_the_narrower_marks_is_tried_first() -> None:
    order = list(detections())
    for narrow, wide in (
        ("devstral", "mistral"),
        ("glm4_moe", "hermes3"),
        ("seed_oss", "qwen3coder"),
        ("xlam", "llama3"),
        ("deepseek_v3", "deepseek_v31"),
        ("ernie45", "hermes3"),
        ("hunyuan_a13b", "jamba"),
        ("gigachat31", "gigachat3"),
        ("hy_v3", "hy_v4"),
        ("hy_v4", "glm4_moe"),
    ):
        assert order.index(narrow) < order.index(wide)
    assert order[-1] == "qwen3"


TEMPLATES = {
    "devstral": ("devstral", None),
    "gemma": ("gemma4", "gemma4"),
    "gpt_oss": ("gptoss", "gptoss"),
    "lfm2": ("lfm2", None),
    "lfm25": ("lfm2", "lfm2"),
    "minicpm5": ("minicpm5", "minicpm5"),
    "mistral7b_v03": ("mistral", None),
    "onyx": ("onyx", "onyx"),
    "phi4_mini": ("phi4", None),
    "qwen3": ("hermes3", "qwen3"),
    "qwen3_30b": ("hermes3", None),
    "qwen36": ("qwen3coder", "qwen3"),
    "qwen3coder_instruct": ("qwen3coder", None),
    "qwen3vl": ("hermes3", None),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_detection_on_real_templates(name: str) -> None:
    source = (DATA / f"chat_template_{name}.jinja").read_text()
    assert detect(source) == TEMPLATES[name]


def test_every_detected_name_exists() -> None:
    found = [found for _, found in RULES]
    assert {tool for tool, _ in found if tool} <= set(names().tool)
    assert {reasoning for _, reasoning in found if reasoning} <= set(names().reasoning)


def test_choices_share_no_state() -> None:
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {"b": "c"}}</tool_call>'
    first, second = (make("hermes3", "qwen3", tools=TOOLS) for _ in range(2))
    events = [(first.feed(char), second.feed(char)) for char in text]
    assert [kinds(a) for a, _ in events] == [kinds(b) for _, b in events]
    assert any(isinstance(event, ToolCallStart) and event.index == 0 for _, b in events for event in b)


def kinds(events: list[Event]) -> list[tuple[type, str]]:
    return [(type(event), event.name if isinstance(event, ToolCallStart) else event.text) for event in events]


@pytest.mark.parametrize("quote", ["`", '"', "'"])
def test_a_reasoning_tag_that_is_quoted_is_talked_about(quote: str) -> None:
    parser = make("hermes3", "qwen3", tools=TOOLS)
    text = f"Write {quote}<think>{quote} first. Then <think>really</think> stop."
    events = parser.feed(text) + parser.finish()
    assert "".join(e.text for e in events if isinstance(e, Reasoning)) == "really"
    assert "".join(e.text for e in events if isinstance(e, Text)) == f"Write {quote}<think>{quote} first. Then  stop."


@pytest.mark.parametrize(
    ("tail", "open_"),
    [("<think>", True), ("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", False), ("a <think> b", False)],
)
def test_reasoning_is_open_when_the_prompt_ends_with_its_tag(tail: str, open_: bool) -> None:
    (event,) = make(None, "qwen3", prompt_tail=tail).feed("hm")
    assert isinstance(event, Reasoning if open_ else Text)


def test_markup_is_named_for_the_detokenizer() -> None:
    parser = make("lfm2", "lfm2", tools=TOOLS)
    assert parser.keep_special_tokens
    assert {"<think>", "<|tool_call_start|>", "<|im_end|>"} <= set(parser.tags)
    assert not make("hermes3", "qwen3", tools=TOOLS).keep_special_tokens


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
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
    ],
)
def test_kinds_of_a_schema(schema: object, kinds: set[str]) -> None:
    assert kinds_of(schema) == kinds


def test_a_schema_that_nests_for_ever_says_nothing() -> None:
    schema: dict[str, object] = {}
    schema["anyOf"] = [schema]
    assert kinds_of(schema) == set()


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
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
    ],
)
def test_text_becomes_the_value_that_the_schema_means(text: str, kinds: str, value: str) -> None:
    assert typed(text, frozenset(kinds.split())) == value


@pytest.mark.parametrize(
    ("literal", "value"),
    [
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
    ],
)
def test_python_literals_become_json(literal: str, value: object) -> None:
    text = literal_to_json(literal)
    assert text is not None
    assert json.loads(text) == value


@pytest.mark.parametrize(
    "literal",
    ["", "[", "[1", "{1", "{1: 2", "'a", "[1 2]", "f(1)", "[1]]", "1 + 1", "{'a' 1}", "{'a': }", "[,]", "[" * 5000],
)
def test_what_is_no_literal_is_refused(literal: str) -> None:
    assert literal_to_json(literal) is None


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r"a\nb\t\\n\'\"", "a\nb\t\\n'\""),
        (r"\x41\u00e9\U0001F600", "Aé😀"),
        (r"\d\x4\uD800\N{DASH}", r"\d\x4\uD800\N{DASH}"),
        ("a\\\nb", "ab"),
        ("\\", "\\"),
        ("\\\\", "\\"),
    ],
)
def test_python_escapes(raw: str, text: str) -> None:
    assert python_text(raw) == text
