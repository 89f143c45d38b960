"""Grammars for tool calls: what each family may write, from its own samples, and what it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.errors import GrammarInvalid, GrammarTooComplex
from lean_ovms.text import parsers
from lean_ovms.text.grammar import build
from lean_ovms.text.grammar.build import GrammarContext
from lean_ovms.types import Json, OutputConstraint

WEATHER: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str = "f", parameters: Any = WEATHER) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def context(family: str | None, *tools: Json, reasoning: str | None = None, tail: str = "") -> GrammarContext:
    return GrammarContext(form=parsers.output_form(family, reasoning, tail), prompt_tail=tail, tools=tools)


def grammar(family: str, *tools: Json, reasoning: str | None = None, tail: str = "", **guide: Any) -> str:
    """The EBNF for one call."""
    asked = OutputConstraint(**{"tool_calls": "required", "parallel": False, **guide})
    built = build.build(asked, context(family, *(tools or (tool(),)), reasoning=reasoning, tail=tail))
    assert built.notices == []
    tag = json.loads(built.tag)
    assert tag["type"] == "structural_tag"
    assert tag["format"]["type"] == "grammar"
    text: str = tag["format"]["grammar"]
    return text


@pytest.mark.parametrize("family", parsers.names().tool)
def test_every_tool_parser_has_a_form_to_write_calls_in(family: str) -> None:
    assert parsers.output_form(family, None).calls is not None


CALLS = {
    "hermes3": r'"<tool_call>\n{\"name\": \"f\", \"arguments\": " object "}\n</tool_call>"',
    "llama3": r'"{\"name\": \"f\", \"parameters\": " object "}"',
    "phi4": r'"functools[" "{\"name\": \"f\", \"arguments\": " object "}" "]"',
    "mistral": r'"[TOOL_CALLS][" "{\"name\": \"f\", \"arguments\": " object "}" "]"',
    "devstral": r'"[TOOL_CALLS]f[ARGS]" object',
    "gptoss": r'"<|channel|>commentary to=functions.f <|constrain|>json<|message|>" object',
    "qwen3coder": r'"<tool_call>\n<function=f>\n" first "</function>\n</tool_call>"',
    "lfm2": r'"<|tool_call_start|>[" "f(" first ")" "]<|tool_call_end|>"',
    "gemma4": r'"<|tool_call>" "call:f" object "<tool_call|>"',
    "onyx": (
        r'" to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n" first '
        r'"</atem:invoke>\n</atem:function_calls>"'
    ),
    "minicpm5": r'"<function name=\"f\">" first "</function>"',
    "deepseek_v3": (
        r'"<｜tool▁calls▁begin｜>" "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" object '
        r'"\n```<｜tool▁call▁end｜>" "<｜tool▁calls▁end｜>"'
    ),
    "kimi_k2": (
        r'"<|tool_calls_section_begin|>" "<|tool_call_begin|>functions.f:" [0-9]{1,2} "<|tool_call_argument_begin|>" '
        r'object "<|tool_call_end|>" "<|tool_calls_section_end|>"'
    ),
    "glm4_moe": r'"<tool_call>f\n" first "</tool_call>"',
    "granite": r'"<|tool_call|>[" "{\"name\": \"f\", \"arguments\": " object "}" "]"',
    "pythonic": r'"[" "f(" first ")" "]"',
    "internlm2": r'"<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": " object "}<|action_end|>"',
    "jamba": r'"<tool_calls>[\n    " "{\"name\": \"f\", \"arguments\": " object "}" "\n]</tool_calls>"',
    "minimax_m2": (
        r'"<minimax:tool_call>\n" "<invoke name=\"f\">\n" first "</invoke>" "\n</minimax:tool_call>"'
    ),
    "deepseek_v31": (
        r'"<｜tool▁calls▁begin｜>" "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" object '
        r'"<｜tool▁call▁end｜>" "<｜tool▁calls▁end｜>"'
    ),
    "deepseek_v32": (
        r'"<｜DSML｜function_calls>\n" "<｜DSML｜invoke name=\"f\">\n" first "</｜DSML｜invoke>" '
        r'"\n</｜DSML｜function_calls>"'
    ),
    "deepseek_v4": (
        r'"<｜DSML｜tool_calls>\n" "<｜DSML｜invoke name=\"f\">\n" first "</｜DSML｜invoke>" '
        r'"\n</｜DSML｜tool_calls>"'
    ),
    "xlam": r'"[" "{\"name\": \"f\", \"arguments\": " object "}" "]"',
    "seed_oss": r'"<seed:tool_call>\n<function=f>\n" first "</function>\n</seed:tool_call>"',
    "olmo3": r'"<function_calls>" "f(" first ")" "</function_calls>"',
    "hunyuan_a13b": r'"<tool_calls>[" "{\"name\": \"f\", \"arguments\": " object "}" "]</tool_calls>"',
    "ernie45": r'"<tool_call>\n{\"name\": \"f\", \"arguments\": " object "}\n</tool_call>"',
    "cohere_command": (
        r'"<|START_ACTION|>[\n    " "{\"tool_call_id\": \"" [0-9]{1,2} "\", \"tool_name\": \"f\", \"parameters\": " '
        r'object "}" "\n]<|END_ACTION|>"'
    ),
    "functiongemma": r'"<start_function_call>call:f" object "<end_function_call>"',
    "granite_20b_fc": r'"<function_call> {\"name\": \"f\", \"arguments\": " object "}"',
    "apertus": r'"<|tools_prefix|>[" "{\"f\": " object "}" "]<|tools_suffix|>"',
    "step3": (
        r'"<｜tool_calls_begin｜>" "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\">" first '
        r'"</steptml:invoke><｜tool_call_end｜>" "<｜tool_calls_end｜>"'
    ),
    "deepseek_v41": (
        r'"<｜DSML｜ calls>\n" "<｜DSML｜ invoke name=\"f\">\n" first "</｜DSML｜ invoke>" "\n</｜DSML｜ calls>"'
    ),
    "gigachat3": (
        r'"<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": " object "}"'
    ),
    "gigachat31": r'"<|function_call|>{\"name\": \"f\", \"arguments\": " object "}"',
    "longcat": r'"<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": " object "}\n</longcat_tool_call>"',
    "hy_v3": r'"<tool_calls>\n" "<tool_call>f<tool_sep>\n" first "</tool_call>" "\n</tool_calls>"',
    "dots": r'"<dots_function_call>\n" "<invoke name=\"f\">\n" first "</invoke>" "\n</dots_function_call>"',
    "k2_horizon": '"<ifm|tool_calls>" "<ifm|tool_call>f" first "</ifm|tool_call>" "</ifm|tool_calls>"',
    "plamo3": (
        '"<|plamo:begin_tool_requests:plamo|>" "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>f'
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
        '" object "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>" '
        '"<|plamo:end_tool_requests:plamo|>"'
    ),
    "inkling": r'"<|content_invoke_tool_json|>{\"name\": \"f\", \"args\": " object "}<|end_message|>"',
    "kimi_k3": (
        r'"<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>" "<|open|>call tool=\"f\" index=\"" '
        r'[0-9]{1,2} "\"<|sep|>" first "<|close|>call<|sep|>" "<|close|>tools<|sep|>"'
    ),
    "minimax_m3": (
        r'"]<]minimax[>[<tool_call>\n" "]<]minimax[>[<invoke name=\"f\">" first "]<]minimax[>[</invoke>" '
        r'"\n]<]minimax[>[</tool_call>"'
    ),
    "hy_v4": '"<tool_calls>" "<tool_call>f" first "</tool_call>" "</tool_calls>"',
}  # fmt: skip


@pytest.mark.parametrize("family", parsers.names().tool)
def test_one_call_is_written_as_the_family_writes_it(family: str) -> None:
    rules = dict(line.split(" ::= ", 1) for line in grammar(family).splitlines())
    whole = rules["calls"].replace(" call ", f" {rules['call']} ")
    whole = rules["call"] if whole == "call" else whole
    whole = whole.removesuffix(" call") + (f" {rules['call']}" if whole.endswith(" call") else "")
    assert whole == CALLS[family]


MEMBERS = {
    "hermes3": r'"\"city\"" ":" " "? string',
    "pythonic": '"city=" string',
    "qwen3coder": r'"<parameter=city>\n" text',
    "minimax_m2": r'"<parameter name=\"city\">" text',
    "deepseek_v32": r'"<｜DSML｜parameter name=\"city\" string=\"true\">" text',
    "seed_oss": '"<parameter=city>" text',
    "glm4_moe": r'"<arg_key>city</arg_key>\n<arg_value>" text',
    "gemma4": '"city" ":" string',
    "functiongemma": '"city" ":" string',
    "step3": r'"<steptml:parameter name=\"city\">" text',
    "deepseek_v41": r'"<｜DSML｜ parameter name=\"city\" string=\"true\">" text',
    "hy_v3": r'"<arg_key>city</arg_key>\n<arg_value>" text',
    "kimi_k3": r'"<|open|>argument key=\"city\" type=\"string\"<|sep|>" text',
    "minimax_m3": '"]<]minimax[>[<city>" text',
    "hy_v4": '"<arg_key>city</arg_key><arg_value>" text',
}


@pytest.mark.parametrize("family", sorted(MEMBERS))
def test_arguments_are_written_in_the_familys_notation(family: str) -> None:
    rules = dict(line.split(" ::= ", 1) for line in grammar(family).splitlines())
    assert rules["city"] == MEMBERS[family]


@pytest.mark.parametrize(("schema", "is_text"), [({"type": "integer"}, False), ({"const": "a"}, True), ({}, True)])
def test_a_value_says_whether_it_is_text(schema: Json, is_text: bool) -> None:
    text = grammar("deepseek_v32", tool("f", {"type": "object", "properties": {"n": schema}}))
    assert (r"name=\"n\" string=\"true\">" in text, r"name=\"n\" string=\"false\">" in text) == (is_text, not is_text)


@pytest.mark.parametrize(("family", "mark"), [("gemma4", '"<|\\"|>"'), ("functiongemma", '"<escape>"')])
def test_a_string_stands_between_the_familys_marks(family: str, mark: str) -> None:
    rules = dict(line.split(" ::= ", 1) for line in grammar(family).splitlines())
    assert rules["string"].startswith(mark)


@pytest.mark.parametrize("family", ["hy_v3", "hy_v4"])
def test_tags_are_spelled_as_the_prompt_spells_them(family: str) -> None:
    text = grammar(family, reasoning=family, tail="<｜hy_Assistant:6124｜><think:6124>")
    for tag in ("tool_calls", "tool_call", "arg_key", "arg_value"):
        assert f"<{tag}:6124>" in text
        assert f"<{tag}>" not in text
    form = parsers.output_form(None, family, "<think:6124>").reasoning
    assert form is not None
    assert (form.start, form.end, form.opened("<think:6124>")) == ("<think:6124>", "</think:6124>", True)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "number"),
        ({"type": ["null", "boolean"]}, "boolean"),
        ({"type": ["string", "null"]}, "string"),
        ({"type": "array"}, "array"),
        ({"enum": ["a"]}, "string"),
        ({"properties": {}}, "object"),
    ],
)
def test_a_value_says_its_type(schema: Json, kind: str) -> None:
    assert rf"key=\"n\" type=\"{kind}\"<|sep|>" in grammar("kimi_k3", tool("f", {"properties": {"n": schema}}))


def test_an_answer_begins_a_response_unless_the_prompt_has() -> None:
    asked = OutputConstraint(format={"type": "json_schema", "json_schema": {"enum": ["red"]}}, param="response_format")
    for tail, begins in (("<|open|>think<|sep|>", True), ("<|open|>response<|sep|>", False)):
        tag = build.build(asked, context(None, reasoning="kimi_k3", tail=tail)).tag
        assert ('"<|open|>response<|sep|>' in json.loads(tag)["format"]["grammar"]) is begins


def test_several_calls_are_bounded_and_separated() -> None:
    assert r'calls ::= call ("\n" call){0,31}' in grammar("hermes3", parallel=True)
    assert r'calls ::= "[" call (", " call){0,31} "]"' in grammar("pythonic", parallel=True)
    assert "calls ::= call\n" in grammar("gptoss", parallel=True), "harmony ends a message with its call"


def test_each_tool_may_be_the_one() -> None:
    text = grammar("devstral", tool("a"), tool("b"))
    assert 'one ::= "[TOOL_CALLS]a[ARGS]" object nothing' in text
    assert 'one_2 ::= "[TOOL_CALLS]b[ARGS]" object nothing' in text
    assert "either ::= one | one_2" in text


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_gets_an_empty_object(parameters: Any) -> None:
    assert 'object ::= "{" blanks "}"' in grammar("hermes3", tool("now", parameters))


def test_a_shaped_call_is_held_to_the_schema_once_it_begins() -> None:
    text = grammar("hermes3", tool_calls="schema")
    assert 'answer ::= TagDispatch(("<tool_call>", call))' in text
    assert r'call ::= "\n{\"name\": \"f\", \"arguments\": " object "}\n</tool_call>"' in text


def test_a_shaped_list_of_calls_is_whole() -> None:
    text = grammar("jamba", tool_calls="schema")
    assert 'TagDispatch(("<tool_calls>", ' in text
    assert r'"[\n    " call (",\n    " call){0,31} "\n]</tool_calls>"' in text


@pytest.mark.parametrize("family", sorted(set(parsers.names().tool) - {"pythonic", "onyx", "xlam"}))
def test_every_family_with_a_trigger_can_shape_calls(family: str) -> None:
    assert "TagDispatch((" in grammar(family, tool_calls="schema")


REASONING = [
    ("hermes3", "qwen3", "<|im_start|>assistant\n", r'reasoning ::= ("<think>" thought)?'),
    ("hermes3", "qwen3", "assistant\n<think>\n", "root ::= thought calls_after"),
    ("hermes3", "qwen3", "assistant\n<think>\n\n</think>\n\n", "root ::= calls"),
    ("hermes3", "deepseek_r1", "<｜Assistant｜>", "root ::= thought calls_after"),
    ("gptoss", "gptoss", "assistant", 'reasoning ::= ("<|channel|>analysis<|message|>" thought "<|start|>assistant")?'),
    ("onyx", "onyx", "<|start|>assistant", 'reasoning ::= (" to=self<|message|>" thought "<|start|>assistant")?'),
    ("hunyuan_a13b", "hunyuan_a13b", "<think>\n\n</think>\n", "root ::= calls"),
    ("ernie45", "ernie45", "assistant\n", "root ::= thought calls_after"),
    (
        "cohere_command",
        "cohere_command",
        "<|CHATBOT_TOKEN|>",
        'reasoning ::= ("<|START_THINKING|>" thought)?',
    ),
    ("gemma4", "gemma4", "<|turn>model\n", 'reasoning ::= ("<|channel>thought" thought)?'),
    ("longcat", "longcat", "<longcat_assistant>", 'reasoning ::= ("<longcat_think>" thought)?'),
    ("minimax_m2", "minimax_m2_append_think", "]~b]ai\n<think>\n", "root ::= thought calls_after"),
    ("minimax_m3", "minimax_m3", "]~b]ai\n<mm:think>", "root ::= thought calls_after"),
    ("k2_horizon", "k2_horizon", "<ifm|think_fast>", "root ::= thought calls_after"),
    ("k2_horizon", "k2_horizon", "<ifm|think_fast></ifm|think_fast>", "root ::= calls"),
    ("inkling", "inkling", "<|message_model|>", '"<|content_thinking|>" thought "<|message_model|>"'),
    ("kimi_k3", "kimi_k3", "<|open|>think<|sep|>", "root ::= thought calls"),
    ("kimi_k3", "kimi_k3", "<|open|>response<|sep|>", r'calls ::= "<|close|>response<|sep|><|open|>tools<|sep|>"'),
    ("hy_v3", "hy_v3", "<｜hy_Assistant｜><think>", "root ::= thought calls_after"),
    ("hy_v3", "hy_v3", "<｜hy_Assistant:opensource｜><think:opensource></think:opensource>", "root ::= calls"),
]  # fmt: skip


def test_no_thought_is_offered_where_the_template_would_have_begun_it() -> None:
    asked = OutputConstraint(format={"type": "json_schema", "json_schema": {"enum": ["red"]}}, param="response_format")
    offered = context(None, reasoning="qwen3", tail="assistant\n")
    assert "<think>" in build.build(asked, offered).tag
    assert "<think>" not in build.build(asked, replace(offered, template_opens_reasoning=True)).tag
    thinking = replace(offered, template_opens_reasoning=True, prompt_tail="assistant\n<think>\n")
    assert "thought" in build.build(asked, thinking).tag


@pytest.mark.parametrize(("family", "reasoning", "tail", "expected"), REASONING)
def test_reasoning_stays_possible_before_the_calls(family: str, reasoning: str, tail: str, expected: str) -> None:
    assert expected in grammar(family, reasoning=reasoning, tail=tail)


UNSAYABLE = [
    ("pythonic", tool("get-weather")),
    ("pythonic", tool("f", {"type": "object", "properties": {"a b": {}}})),
    ("qwen3coder", tool("a>b")),
    ("qwen3coder", tool("f", {"type": "object", "properties": {"<a>": {}}})),
    ("gptoss", tool("get weather")),
    (None, tool()),
]


@pytest.mark.parametrize(("family", "one"), UNSAYABLE)
def test_what_a_family_cannot_write_is_reported_and_not_enforced(family: str | None, one: Json) -> None:
    built = build.build(OutputConstraint(tool_calls="required"), context(family, one))
    assert built.tag == ""
    assert len(built.notices) == 1
    assert built.notices[0].startswith("tool calls are not enforced: ")


def test_a_json_family_can_write_any_name() -> None:
    assert r"\"name\": \"a \\\"b\\\" ž\"" in grammar("hermes3", tool('a "b" ž'))


def test_a_bad_schema_of_one_tool_becomes_any_object_and_is_reported() -> None:
    built = build.build(
        OutputConstraint(tool_calls="required"), context("devstral", tool("a", {"type": "nope"}), tool("b"))
    )
    assert built.notices == ["the schema of the tool a is not imposed: 'nope' is not a type"]
    assert "[TOOL_CALLS]a[ARGS]" in built.tag
    assert "[TOOL_CALLS]b[ARGS]" in built.tag


def test_keywords_that_are_not_imposed_are_reported() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    built = build.build(OutputConstraint(tool_calls="required"), context("hermes3", tool("f", parameters)))
    assert built.notices == ["not imposed in the schema of the tool f: uniqueItems"]


@pytest.mark.parametrize("family", parsers.names().tool)
def test_schemas_that_lead_round_in_a_circle_do_no_harm(family: str) -> None:
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b", "x": 1}, "b": {"$ref": "#/$defs/a", "y": 1}}}
    built = build.build(OutputConstraint(tool_calls="required"), context(family, tool("f", circle)))
    assert built.notices
    assert built.tag


# --- what is tried when a grammar is refused


def test_a_format_that_is_wrong_is_dropped_unless_it_must_be() -> None:
    asked = OutputConstraint(format={"type": "regex", "pattern": "("})
    left, _, notice = build.relax(asked, context(None), GrammarInvalid("no"))
    assert left.format is None
    assert notice == "response_format was not imposed: no"
    for error in (GrammarInvalid("no"), GrammarTooComplex("much")):
        must = OutputConstraint(format=asked.format, param="guided_regex", strict=isinstance(error, GrammarInvalid))
        with pytest.raises(type(error)):
            build.relax(must, context(None), error)


def test_tools_lose_their_schemas_before_the_call_is_given_up() -> None:
    asked, place = OutputConstraint(tool_calls="required"), context("hermes3", tool())
    asked, place, notice = build.relax(asked, place, GrammarTooComplex("much"))
    assert asked.tool_calls == "required"
    assert notice == "the schemas of the tools are not imposed: much"
    assert build.build(asked, place).notices == []
    with pytest.raises(GrammarTooComplex):
        build.relax(asked, place, GrammarTooComplex("much"))
    loose, _, _ = build.relax(OutputConstraint(tool_calls="schema"), place, GrammarTooComplex("much"))
    assert loose.tool_calls == ""
