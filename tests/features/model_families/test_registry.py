"""The registry, the choice of a family by its chat template, and the cooperation of the two parts of a parser."""

from __future__ import annotations

import pytest

from lean_ovms.composition import compose
from lean_ovms.errors import StartError
from lean_ovms.features.model_families.json_calls import JsonCalls
from lean_ovms.features.model_families.registry import ParserRegistry, registry
from lean_ovms.manifest import ParserRow
from lean_ovms.types import Event, Reasoning, Text, ToolCallDelta, ToolCallStart

TOOLS = [{"type": "function", "function": {"name": "f"}}]
PARSERS = registry()


def test_a_server_has_the_families_of_its_features() -> None:
    assert {*PARSERS.rows} == {row.name for row in compose().parsers}


def test_a_family_with_a_name_that_there_is_stops_the_start() -> None:
    with pytest.raises(StartError, match="the parser qwen3 is declared twice"):
        ParserRegistry((*PARSERS.rows.values(), ParserRow("qwen3", "module:NAME")))


@pytest.mark.parametrize("name", PARSERS.rows)
def test_a_family_reads_what_its_row_says_and_has_a_form_of_calls(name: str) -> None:
    row, family = PARSERS.rows[name], PARSERS.load(name)
    assert (row.tools, row.reasoning) == (family.tools is not None, family.thinking is not None)
    assert row.tools == (family.form is not None)
    assert row.reasoner in ("", *PARSERS.reasoning_names)


def test_no_two_families_have_the_same_place_in_the_order() -> None:
    ranks = [row.rank for row in PARSERS.rules]
    assert ranks == sorted(set(ranks))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("<tool_call></tool_call>", ("hermes3", None)),
        ("<tool_call></tool_call><think>", ("hermes3", "qwen3")),
        ("<tool_call></tool_call>content.split('</think>')", ("hermes3", "qwen3")),
        ("<tool_call></tool_call><tool_response></tool_response>", ("hermes3", None)),
        ("<think>", (None, "qwen3")),
        ("content.split('</think>')", (None, "qwen3")),
        ("plain", (None, None)),
    ],
)
def test_detection_by_the_template(source: str, found: tuple[str | None, str | None]) -> None:
    assert PARSERS.detect(source) == found


def test_a_row_makes_a_syntax_of_its_own() -> None:
    made = JsonCalls.variant(tags=("<x>",), one_call=True)
    assert (made.tags, made.one_call) == (("<x>",), True)
    assert (JsonCalls.tags, JsonCalls.one_call) == ((), False)


@pytest.mark.parametrize("wrong", [{"noize": ("</s>",)}, {"noise": "</s>"}, {"one_call": 1}, {"start_bracket": None}])
def test_a_row_with_a_wrong_name_or_type_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=f"JsonCalls has no {next(iter(wrong))} that is a"):
        JsonCalls.variant(**wrong)


@pytest.mark.parametrize("call", [lambda: PARSERS.load("base"), lambda: PARSERS.make("nope", None, tools=TOOLS)])
def test_an_unknown_name_is_refused_with_the_list(call: object) -> None:
    with pytest.raises(ValueError, match=r"the parsers are .*(qwen3|hermes3)"):
        call()  # type: ignore[operator]


def test_without_parsers_everything_is_text() -> None:
    parser = PARSERS.make(None, None, tools=TOOLS)
    assert parser.feed("<think>") == [Text("<think>")]
    assert parser.feed("") == []
    assert parser.finish() == []
    assert not parser.keep_special_tokens


def test_a_name_goes_out_before_the_arguments_and_arguments_as_they_come() -> None:
    parser = PARSERS.make("hermes3", None, tools=TOOLS)
    assert parser.feed('<tool_call>\n{"name": "f') == []
    (start,) = parser.feed('"')
    assert isinstance(start, ToolCallStart)
    assert (start.index, start.name) == (0, "f")
    assert parser.feed(', "arguments": {"a": "b') == [ToolCallDelta(0, '{"a": "b')]
    assert parser.feed(" c") == [ToolCallDelta(0, " c")]
    assert parser.feed('"}}\n</tool_call>') == [ToolCallDelta(0, '"}')]
    assert parser.finish() == []


def test_ids_are_unique_and_look_like_openais() -> None:
    events = PARSERS.make("hermes3", None, tools=TOOLS).feed('<tool_call>{"name": "f"}</tool_call>' * 50)
    ids = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert len(set(ids)) == 50
    assert all(len(i) == 29 and i.startswith("call_") and i[5:].isalnum() for i in ids)


def test_what_came_with_one_chunk_leaves_as_one_event_per_kind() -> None:
    parser = PARSERS.make("hermes3", "qwen3", tools=TOOLS)
    assert parser.feed("<think>a < b</think>c < d") == [Reasoning("a < b"), Text("c < d")]


def test_blanks_alone_are_an_answer_when_no_call_came() -> None:
    parser = PARSERS.make("hermes3", None, tools=TOOLS)
    assert parser.feed(" \n") == []
    assert parser.finish() == [Text(" \n")]


def test_finish_twice_says_nothing_twice() -> None:
    parser = PARSERS.make("hermes3", None, tools=TOOLS)
    parser.feed("a<tool_")
    assert parser.finish() == [Text("<tool_")]
    assert parser.finish() == []


def test_choices_share_no_state() -> None:
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {"b": "c"}}</tool_call>'
    first, second = (PARSERS.make("hermes3", "qwen3", tools=TOOLS) for _ in range(2))
    events = [(first.feed(char), second.feed(char)) for char in text]
    assert [kinds(a) for a, _ in events] == [kinds(b) for _, b in events]
    assert any(isinstance(event, ToolCallStart) and event.index == 0 for _, b in events for event in b)


def kinds(events: list[Event]) -> list[tuple[type, str]]:
    return [(type(event), event.name if isinstance(event, ToolCallStart) else event.text) for event in events]


@pytest.mark.parametrize("quote", ["`", '"', "'"])
def test_a_reasoning_tag_that_is_quoted_is_talked_about(quote: str) -> None:
    parser = PARSERS.make("hermes3", "qwen3", tools=TOOLS)
    text = f"Write {quote}<think>{quote} first. Then <think>really</think> stop."
    events = parser.feed(text) + parser.finish()
    assert "".join(e.text for e in events if isinstance(e, Reasoning)) == "really"
    assert "".join(e.text for e in events if isinstance(e, Text)) == f"Write {quote}<think>{quote} first. Then  stop."


@pytest.mark.parametrize(
    ("tail", "open_"),
    [("<think>", True), ("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", False), ("a <think> b", False)],
)
def test_reasoning_is_open_when_the_prompt_ends_with_its_tag(tail: str, open_: bool) -> None:
    (event,) = PARSERS.make(None, "qwen3", prompt_tail=tail).feed("hm")
    assert isinstance(event, Reasoning if open_ else Text)
