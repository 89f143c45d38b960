"""The registry, the choice of a family by its chat template, and the cooperation of the two parts of a parser."""

from __future__ import annotations

import pytest

from lean_ovms.composition import compose
from lean_ovms.errors import StartError
from lean_ovms.features.model_families.json_calls import JsonCalls
from lean_ovms.features.model_families.registry import ParserRegistry, registry
from lean_ovms.manifest import ParserRow
from lean_ovms.types import Reasoning, Text, ToolCallDelta, ToolCallStart

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
    assert parser.tags == ()


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
    text, ending = '<tool_call>{"name": "f"}</tool_call>' * 50 + "a<tool_", Text("<tool_")
    *calls, after = (parser := PARSERS.make("hermes3", None, tools=TOOLS)).feed(text)
    ids = {event.id for event in calls if isinstance(event, ToolCallStart)}
    assert (len(ids), after) == (50, Text("a"))
    assert all(len(i) == 29 and i.startswith("call_") and i[5:].isalnum() for i in ids)
    assert (parser.finish(), parser.finish()) == ([ending], [])
    parser = PARSERS.make("hermes3", "qwen3", tools=TOOLS)
    assert parser.feed(" \n") == []
    assert parser.finish() == [Text(" \n")], "where no call came"
    assert PARSERS.make("hermes3", "qwen3").feed("<think>a < b</think>c < d") == [Reasoning("a < b"), Text("c < d")]


def test_a_reasoning_tag_that_is_quoted_is_talked_about() -> None:
    for quote in "`\"'":
        parser = PARSERS.make("hermes3", "qwen3", tools=TOOLS)
        text = f"Write {quote}<think>{quote} first. Then <think>really</think> stop."
        events = parser.feed(text) + parser.finish()
        assert "".join(e.text for e in events if isinstance(e, Reasoning)) == "really"
        said = "".join(e.text for e in events if isinstance(e, Text))
        assert said == f"Write {quote}<think>{quote} first. Then  stop."


@pytest.mark.parametrize(
    ("tail", "open_"),
    [("<think>", True), ("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", False), ("a <think> b", False)],
)
def test_reasoning_is_open_when_the_prompt_ends_with_its_tag(tail: str, open_: bool) -> None:
    (event,) = PARSERS.make(None, "qwen3", prompt_tail=tail).feed("hm")
    assert isinstance(event, Reasoning if open_ else Text)
