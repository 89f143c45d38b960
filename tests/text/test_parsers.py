"""The registry, the choice by chat template, and how the two parts of a parser work together."""

from __future__ import annotations

import pytest

from lean_ovms.shapes import CallArgs, CallStart, Reasoning, Text
from lean_ovms.text.parsers import detect, load, make, names

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_names_lists_only_families() -> None:
    assert "hermes3" in names().tool
    assert "qwen3" in names().reasoning
    assert not {"base", "plain", "detection", "json_calls"} & {*names().tool, *names().reasoning}


@pytest.mark.parametrize("call", [lambda: load("base"), lambda: make("nope", None), lambda: make(None, "hermes3")])
def test_an_unknown_name_is_refused_with_the_list(call: object) -> None:
    with pytest.raises(ValueError, match=r"known are .*(qwen3|hermes3)"):
        call()  # type: ignore[operator]


def test_without_parsers_everything_is_text() -> None:
    parser = make(None, None, tools=TOOLS)
    assert parser.feed("<think>") == [Text("<think>")]
    assert parser.feed("") == []
    assert parser.finish() == []
    assert not parser.keep_special_tokens


def test_an_unknown_tool_parser_is_refused_even_without_tools() -> None:
    with pytest.raises(ValueError, match="unknown tool parser"):
        make("nope", None, tools=[])


def test_a_name_goes_out_before_the_arguments_and_arguments_as_they_come() -> None:
    parser = make("hermes3", None, tools=TOOLS)
    assert parser.feed('<tool_call>\n{"name": "f') == []
    (start,) = parser.feed('"')
    assert isinstance(start, CallStart)
    assert (start.index, start.name) == (0, "f")
    assert parser.feed(', "arguments": {"a": "b') == [CallArgs(0, '{"a": "b')]
    assert parser.feed(" c") == [CallArgs(0, " c")]
    assert parser.feed('"}}\n</tool_call>') == [CallArgs(0, '"}')]
    assert parser.finish() == []


def test_ids_are_unique_and_look_like_openais() -> None:
    events = make("hermes3", None, tools=TOOLS).feed('<tool_call>{"name": "f"}</tool_call>' * 50)
    ids = [event.id for event in events if isinstance(event, CallStart)]
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
]


@pytest.mark.parametrize(("source", "found"), RULES)
def test_detection_by_the_template(source: str, found: tuple[str | None, str | None]) -> None:
    assert detect(source) == found
