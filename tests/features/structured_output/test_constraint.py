"""The constraint around values: what each family may write, according to its own samples, and what it may not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.errors import BadRequest, GrammarInvalid, GrammarTooComplex
from lean_ovms.features.model_families.registry import registry
from lean_ovms.features.structured_output import constraint, schemas
from lean_ovms.features.structured_output.limits import GrammarBounds, check
from lean_ovms.grammar.call_syntax import GrammarContext
from lean_ovms.types import Json, OutputConstraint

WEATHER: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str = "f", parameters: Any = WEATHER) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def context(family: str | None, *tools: Json, reasoning: str | None = None, tail: str = "") -> GrammarContext:
    return GrammarContext(form=registry().output_form(family, reasoning, tail), prompt_tail=tail, tools=tools)


def shown(form: Json) -> str:
    """Returns a format as text: … for free text, ‹json› for a value, [optional parts], (one|of these)."""
    kind = form["type"]
    if kind == "tag":
        return f"{form['begin']}{shown(form['content'])}{form['end']}"
    if kind == "tags_with_separator":
        return f"({'|'.join(map(shown, form['tags']))}){{1,{form['most']},{form['separator']}}}"
    if kind == "triggered_tags":
        return f"…{form['triggers'][0]}→({'|'.join(map(shown, form['tags']))})"
    if kind == "or":
        return f"({'|'.join(map(shown, form['elements']))})"
    if kind == "sequence":
        return "".join(map(shown, form["elements"]))
    if kind == "optional":
        return f"[{shown(form['content'])}]"
    value = {"const_string": "value", "regex": "pattern"}.get(kind)
    return str(form[value]) if value else "…" if kind == "any_text" else f"‹{form.get('style', 'json')}›"


def answer(
    family: str | None,
    *tools: Json,
    reasoning: str | None = None,
    tail: str = "",
    parallel: bool | None = False,
    **guide: Any,
) -> str:
    """Returns an answer with one call, unless several are requested."""
    setting = context(family, *(tools or (tool(),)), reasoning=reasoning, tail=tail)
    asked = OutputConstraint(**{"tool_calls": "required", **guide})
    built = constraint.build(asked, replace(setting, parallel=parallel))
    assert built.notices == []
    return shown(json.loads(built.tag)["format"])


CALLS = {
    'apriel': '<tool_calls>[{"name": "f", "arguments": ‹json›}]</tool_calls>',
    'apertus': '<|tools_prefix|>[{"f": ‹json›}]<|tools_suffix|>',
    'cohere_command': (
        '<|START_ACTION|>[\n    {"tool_call_id": "[0-9]{1,2}", "tool_name": "f", "parameters": ‹json'
        '›}\n]<|END_ACTION|>'
    ),
    'deepseek_v3': (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n‹json›\n```<｜tool▁call'
        '▁end｜><｜tool▁calls▁end｜>'
    ),
    'deepseek_v31': (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>‹json›'
        '<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    'deepseek_v32': (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="city" string="true">'
        '…</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
    'deepseek_v4': (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="city" string="true">…</｜'
        'DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    ),
    'deepseek_v41': (
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="city" string="true">…</｜DS'
        'ML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'
    ),
    'devstral': '[TOOL_CALLS]f[ARGS]‹json›',
    'dots': (
        '<dots_function_call>\n<invoke name="f">\n<parameter name="city">…</parameter>\n</invoke>\n</do'
        'ts_function_call>'
    ),
    'ernie45': '<tool_call>\n{"name": "f", "arguments": ‹json›}\n</tool_call>',
    'functiongemma': '<start_function_call>call:f‹functiongemma›<end_function_call>',
    'gemma4': '<|tool_call>call:f‹gemma›<tool_call|>',
    'generic': '<tool_call>\n{"name": "f", "arguments": ‹one_line›}\n</tool_call>',
    'gigachat3': '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": ‹json›}',
    'gigachat31': '<|function_call|>{"name": "f", "arguments": ‹json›}',
    'glm4_moe': '<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>…</arg_value>\n</tool_call>',
    'gptoss': '<|channel|>commentary to=functions.f <|constrain|>json<|message|>‹json›',
    'granite': '<|tool_call|>[{"name": "f", "arguments": ‹json›}]',
    'granite_20b_fc': '<function_call> {"name": "f", "arguments": ‹json›}',
    'hermes3': '<tool_call>\n{"name": "f", "arguments": ‹json›}\n</tool_call>',
    'hunyuan_a13b': '<tool_calls>[{"name": "f", "arguments": ‹json›}]</tool_calls>',
    'hy_v3': (
        '<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>…</arg_value>\n</too'
        'l_call>\n</tool_calls>'
    ),
    'hy_v4': '<tool_calls><tool_call>f<arg_key>city</arg_key><arg_value>…</arg_value></tool_call></tool_calls>',
    'inkling': '<|content_invoke_tool_json|>{"name": "f", "args": ‹json›}<|end_message|>',
    'internlm2': '<|action_start|><|plugin|>\n{"name": "f", "parameters": ‹json›}<|action_end|>',
    'jamba': '<tool_calls>[\n    {"name": "f", "arguments": ‹json›}\n]</tool_calls>',
    'k2_horizon': (
        '<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>city</ifm|arg_key><ifm|arg_value>…</ifm|arg_v'
        'alue></ifm|tool_call></ifm|tool_calls>'
    ),
    'kimi_k2': (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:[0-9]{1,2}<|tool_call_argument_'
        'begin|>‹json›<|tool_call_end|><|tool_calls_section_end|>'
    ),
    'kimi_k3': (
        '<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" i'
        'ndex="[0-9]{1,2}"<|sep|><|open|>argument key="city" type="string"<|sep|>…<|close|>argument'
        '<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    ),
    'lfm2': '<|tool_call_start|>[f(‹python_arguments›)]<|tool_call_end|>',
    'llama3': '{"name": "f", "parameters": ‹json›}',
    'longcat': '<longcat_tool_call>\n{"name": "f", "arguments": ‹json›}\n</longcat_tool_call>',
    'minicpm5': '<function name="f"><param name="city">…</param></function>',
    'minimax_m2': (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">…</parameter>\n</invoke>\n</min'
        'imax:tool_call>'
    ),
    'minimax_m3': (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<city>…]<]minimax[>[</'
        'city>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'
    ),
    'mistral': '[TOOL_CALLS][{"name": "f", "arguments": ‹json›}]',
    'nemotron_json': '<TOOLCALL>[{"name": "f", "arguments": ‹json›}]</TOOLCALL>',
    'olmo3': '<function_calls>f(‹python_arguments›)</function_calls>',
    'onyx': (
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="city">…'
        '</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    ),
    'phi4': 'functools[{"name": "f", "arguments": ‹json›}]',
    'plamo3': (
        '<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_na'
        'me:plamo|>f<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constr'
        'ain|>json<|plamo:msg|>‹json›<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:pla'
        'mo|><|plamo:end_tool_requests:plamo|>'
    ),
    'pythonic': '[f(‹python_arguments›)]',
    'qwen3coder': '<tool_call>\n<function=f>\n<parameter=city>\n…\n</parameter>\n</function>\n</tool_call>',
    'seed_oss': '<seed:tool_call>\n<function=f>\n<parameter=city>…</parameter>\n</function>\n</seed:tool_call>',
    'solar_open': (
        '<|tool_calls|><|tool_call:begin|>[a-z0-9]{10}<|tool_call:name|>f<|tool_call:args|>‹json›<|tool_call:end|>'
    ),
    'solar_open2': (
        '<|tool_call:start|>f\n<|tool_arg:start|>city<|tool_arg:value|>…<|tool_arg:end|>\n<|tool_call:end|>'
    ),
    'step3': (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f"><stept'
        'ml:parameter name="city">…</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_cal'
        'ls_end｜>'
    ),
    'xlam': '[{"name": "f", "arguments": ‹json›}]',
}  # fmt: skip


@pytest.mark.parametrize("family", registry().tool_names)
def test_one_call_is_written_as_the_family_writes_it(family: str) -> None:
    assert answer(family) == CALLS[family]


VALUES: list[tuple[Json, str]] = [
    ({"type": "string"}, "…</v>"),
    ({"type": "string", "maxLength": 5}, "[^<]{0,5}</v>"),
    ({"enum": ["a", "b"]}, "(a|b)</v>"),
    ({"const": "a"}, "a</v>"),
    ({"type": ["string", "null"]}, "…</v>"),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "…</v>"),
    ({"type": "integer"}, "‹json›</v>"),
    ({"$ref": "#/$defs/n"}, "‹json›</v>"),
    ({"allOf": [{"$ref": "#/$defs/s"}]}, "…</v>"),
    ({"type": "array", "items": {"type": "string"}}, "‹json›</v>"),
]


@pytest.mark.parametrize(("schema", "written"), VALUES)
def test_an_element_holds_text_where_a_string_may_be_and_else_json(schema: Json, written: str) -> None:
    definitions = {"n": {"type": "number"}, "s": {"type": "string"}}
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": definitions}
    text = answer("minicpm5", tool("f", parameters))
    assert text == f'<function name="f"><param name="v">{written.replace("</v>", "</param>")}</function>'


def test_a_value_in_an_element_takes_the_definitions_along_that_it_refers_to() -> None:
    parameters = {"type": "object", "properties": {"v": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "number"}}}
    built = constraint.build(OutputConstraint(tool_calls="required"), context("minicpm5", tool("f", parameters)))
    assert '"json_schema": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "number"}}}' in built.tag


def test_arguments_that_may_be_left_out_are_optional() -> None:
    text = answer("minicpm5", tool("f", {"type": "object", "properties": {"v": {"type": "integer"}}}))
    assert text == '<function name="f">[<param name="v">‹json›</param>]</function>'


@pytest.mark.parametrize("family", ["hy_v3", "hy_v4"])
def test_tags_are_spelled_as_the_prompt_spells_them(family: str) -> None:
    text = answer(family, reasoning=family, tail="<｜hy_Assistant:6124｜><think:6124>")
    for tag in ("tool_calls", "tool_call", "arg_key", "arg_value"):
        assert f"<{tag}:6124>" in text
        assert f"<{tag}>" not in text
    form = registry().output_form(None, family, "<think:6124>").reasoning
    assert form is not None
    assert (form.start, form.end, form.opened("<think:6124>")) == ("<think:6124>", "</think:6124>", True)


TYPES: list[tuple[Json, str]] = [
    ({"type": "integer"}, "number"),
    ({"type": ["null", "boolean"]}, "boolean"),
    ({"type": ["string", "null"]}, "string"),
    ({"type": "array"}, "array"),
    ({"enum": ["a"]}, "string"),
    ({"properties": {}}, "object"),
]


def test_a_value_says_its_type() -> None:
    for schema, kind in TYPES:
        assert f'key="n" type="{kind}"<|sep|>' in answer("kimi_k3", tool("f", {"properties": {"n": schema}}))
    for schema, is_text in (({"type": "integer"}, False), ({"const": "a"}, True), ({}, True)):
        text = answer("deepseek_v32", tool("f", {"type": "object", "properties": {"n": schema}}))
        assert ('name="n" string="true">' in text, 'name="n" string="false">' in text) == (is_text, not is_text)


RED: Json = {"type": "json_schema", "json_schema": {"enum": ["red"]}}


def test_an_answer_begins_a_response_unless_the_prompt_has() -> None:
    for tail, begins in (("<|open|>think<|sep|>", True), ("<|open|>response<|sep|>", False)):
        built = constraint.build(OutputConstraint(format=RED), context(None, reasoning="kimi_k3", tail=tail))
        assert ("<|open|>response<|sep|>‹json›" in shown(json.loads(built.tag)["format"])) is begins


def test_several_calls_are_bounded_and_separated() -> None:
    assert answer("hermes3", parallel=True).endswith("){1,32,\n}[\n][[^< \\n]…]"), "or other text ends the answer"
    assert answer("pythonic", parallel=True).endswith("){1,32,, }]")
    assert answer("hermes3", parallel=None) == answer("hermes3", parallel=True)
    assert answer("generic", parallel=True).endswith("){1,32,\n}[\n][[^< \\n]…]")
    assert answer("generic", parallel=None) == answer("generic"), "no model is trained to end a list of these"
    assert "{1,32" not in answer("gptoss", parallel=True), "harmony ends a message with its call"


def test_each_tool_may_be_the_one() -> None:
    assert answer("devstral", tool("a"), tool("b")) == "([TOOL_CALLS]a[ARGS]‹json›|[TOOL_CALLS]b[ARGS]‹json›)"


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_gets_an_empty_object(parameters: Any) -> None:
    built = constraint.build(OutputConstraint(tool_calls="required"), context("hermes3", tool("now", parameters)))
    assert '{"type": "object", "properties": {}, "additionalProperties": false}' in built.tag


def test_a_call_is_held_to_the_schema_once_it_begins() -> None:
    text = answer("hermes3", tool_calls="schema")
    assert text == '…<tool_call>→(<tool_call>\n{"name": "f", "arguments": ‹json›}\n</tool_call>)'


def test_a_list_of_calls_that_has_begun_is_whole() -> None:
    text = answer("jamba", tool_calls="schema")
    calls = '({"name": "f", "arguments": ‹json›}){1,32,,\n    }'
    assert text == f"…<tool_calls>→(<tool_calls>[\n    {calls}\n]</tool_calls>)"


@pytest.mark.parametrize("family", sorted(set(registry().tool_names) - {"pythonic", "onyx", "xlam"}))
def test_every_family_with_a_trigger_can_hold_calls_to_their_schemas(family: str) -> None:
    assert answer(family, tool_calls="schema").startswith("…")


THOUGHT = "[ \\n]{0,4}"
REASONING = [
    ("hermes3", "qwen3", "<|im_start|>assistant\n", f"[<think>…</think>]{THOUGHT}"),
    ("hermes3", "qwen3", "assistant\n<think>\n", f"…</think>{THOUGHT}"),
    ("hermes3", "qwen3", "assistant\n<think>\n\n</think>\n\n", ""),
    ("hermes3", "deepseek_r1", "<｜Assistant｜>", f"…</think>{THOUGHT}"),
    ("gptoss", "gptoss", "assistant", "[<|channel|>analysis<|message|>…<|end|><|start|>assistant]"),
    ("onyx", "onyx", "<|start|>assistant", "[ to=self<|message|>…<|eom|><|start|>assistant]"),
    ("hunyuan_a13b", "hunyuan_a13b", "<think>\n\n</think>\n", ""),
    ("ernie45", "ernie45", "assistant\n", f"…</think>{THOUGHT}"),
    ("cohere_command", "cohere_command", "<|CHATBOT_TOKEN|>", "[<|START_THINKING|>…<|END_THINKING|>]"),
    ("gemma4", "gemma4", "<|turn>model\n", f"[<|channel>thought…<channel|>]{THOUGHT}"),
    ("longcat", "longcat", "<longcat_assistant>", f"[<longcat_think>…</longcat_think>]{THOUGHT}"),
    ("minimax_m2", "minimax_m2_append_think", "]~b]ai\n<think>\n", f"…</think>{THOUGHT}"),
    ("minimax_m3", "minimax_m3", "]~b]ai\n<mm:think>", f"…</mm:think>{THOUGHT}"),
    ("k2_horizon", "k2_horizon", "<ifm|think_fast>", f"…</ifm|think_fast>{THOUGHT}"),
    ("k2_horizon", "k2_horizon", "<ifm|think_fast></ifm|think_fast>", ""),
    ("inkling", "inkling", "<|message_model|>", "[<|content_thinking|>…<|end_message|><|message_model|>]"),
    ("kimi_k3", "kimi_k3", "<|open|>think<|sep|>", "…<|close|>think<|sep|>"),
    ("kimi_k3", "kimi_k3", "<|open|>response<|sep|>", ""),
    ("hy_v3", "hy_v3", "<｜hy_Assistant｜><think>", f"…</think>{THOUGHT}"),
    ("hy_v3", "hy_v3", "<｜hy_Assistant:opensource｜><think:opensource></think:opensource>", ""),
]  # fmt: skip


def test_no_reasoning_is_offered_where_the_template_would_have_begun_it() -> None:
    asked = OutputConstraint(format=RED, param="response_format")
    offered = context(None, reasoning="qwen3", tail="assistant\n")
    assert "<think>" in constraint.build(asked, offered).tag
    assert "<think>" not in constraint.build(asked, replace(offered, template_opens_reasoning=True)).tag
    thinking = replace(offered, template_opens_reasoning=True, prompt_tail="assistant\n<think>\n")
    assert "</think>" in constraint.build(asked, thinking).tag


@pytest.mark.parametrize(("family", "reasoning", "tail", "expected"), REASONING)
def test_reasoning_stays_possible_before_the_calls(family: str, reasoning: str, tail: str, expected: str) -> None:
    text, calls = answer(family, reasoning=reasoning, tail=tail), answer(family, tail=tail)
    assert text.startswith(expected)
    if not expected and family == reasoning != "kimi_k3":
        assert "…</" not in text.removesuffix(calls)


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
    built = constraint.build(OutputConstraint(tool_calls="required"), context(family, one))
    assert built.tag == ""
    assert len(built.notices) == 1
    assert built.notices[0].startswith("tool calls are not enforced: ")


def test_a_json_family_can_write_any_name() -> None:
    assert '"name": "a \\"b\\" ž"' in answer("hermes3", tool('a "b" ž'))


def test_a_bad_schema_of_one_tool_becomes_any_object_and_is_reported() -> None:
    built = constraint.build(
        OutputConstraint(tool_calls="required"), context("devstral", tool("a", {"type": "nope"}), tool("b"))
    )
    assert built.notices == ["the schema of the tool a is not enforced: 'nope' is not a type"]
    assert "[TOOL_CALLS]a[ARGS]" in built.tag
    assert "[TOOL_CALLS]b[ARGS]" in built.tag


def test_keywords_that_are_not_imposed_are_reported() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
    built = constraint.build(OutputConstraint(tool_calls="required"), context("hermes3", tool("f", parameters)))
    assert built.notices == ["not enforced in the schema of the tool f: pattern"]


@pytest.mark.parametrize("family", registry().tool_names)
def test_schemas_that_lead_round_in_a_circle_do_no_harm(family: str) -> None:
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b", "x": 1}, "b": {"$ref": "#/$defs/a", "y": 1}}}
    built = constraint.build(OutputConstraint(tool_calls="required"), context(family, tool("f", circle)))
    assert built.notices
    assert built.tag


# --- what is tried when a grammar is refused


def relaxed(
    asked: OutputConstraint, place: GrammarContext, error: BadRequest, **bounds: int
) -> tuple[OutputConstraint, GrammarContext, list[str]]:
    return constraint.relax(asked, place, error, GrammarBounds(**bounds))


def test_a_format_that_is_wrong_is_dropped_unless_it_must_be() -> None:
    asked = OutputConstraint(format={"type": "regex", "pattern": "("})
    left, _, notices = relaxed(asked, context(None), GrammarInvalid("no"))
    assert left.format is None
    assert notices == ["response_format was not enforced: no"]
    for error in (GrammarInvalid("no"), GrammarTooComplex("much")):
        must = OutputConstraint(format=asked.format, param="guided_regex", strict=isinstance(error, GrammarInvalid))
        with pytest.raises(type(error)):
            relaxed(must, context(None), error)


def test_tools_lose_their_schemas_before_the_call_is_given_up() -> None:
    asked, place = OutputConstraint(tool_calls="required"), context("hermes3", tool())
    asked, place, notices = relaxed(asked, place, GrammarTooComplex("much"))
    assert asked.tool_calls == "required"
    assert notices == ["the schemas of the tools are not enforced: much"]
    assert constraint.build(asked, place).notices == []
    with pytest.raises(GrammarTooComplex):
        relaxed(asked, place, GrammarTooComplex("much"))
    loose, _, _ = relaxed(OutputConstraint(tool_calls="schema"), place, GrammarTooComplex("much"))
    assert loose.tool_calls == ""


NESTED: Json = {"type": "string"}
for _ in range(61):
    NESTED = {"type": "array", "items": NESTED}
BOUNDS = {"bytes": 1 << 19}
TOO_COMPLEX = "The grammar is too complex for this server: "
BEYOND: list[tuple[Json, str]] = [
    ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(501)}},
     "it has 501 properties; the limit is 500"),
    # the properties of the parts of one object are counted together
    ({"allOf": [{"type": "object", "properties": {f"{k}{i}": True for i in range(300)}} for k in "pq"]},
     "it has 600 properties; the limit is 500"),
    ({"type": "object", "properties": {"v": {"enum": [f"v{i}" for i in range(5001)]}}},
     "it has an enum of 5001 values; the limit is 5000"),
    ({"type": "object", "properties": {"v": {"type": "number", "multipleOf": 0.12343}}},
     "multipleOf 0.12343 has too many digits"),
    ({"type": "object", "properties": {"v": {"type": "string", "pattern": "((.?){50}){50}"}}},
     "it repeats an expression that may be empty more than 128 times"),
    ({"type": "object", "properties": {"v": NESTED}}, "it is nested deeper than 64 levels"),
]  # fmt: skip
"""Parameters of a tool that are beyond a limit, with the reason."""


@pytest.mark.parametrize(("parameters", "why"), BEYOND)
@pytest.mark.parametrize(
    ("family", "calls"), [("hermes3", "required"), ("pythonic", "required"), ("qwen3coder", "schema")]
)
def test_a_tool_beyond_a_limit_alone_loses_its_schema(family: str, calls: str, parameters: Json, why: str) -> None:
    tools = (tool("small"), tool("large", parameters), tool("last"))
    asked, place = OutputConstraint(tool_calls=calls), context(family, *tools)
    bounds = GrammarBounds(**BOUNDS)
    built = constraint.build(asked, place)
    try:
        check(built.tag, bounds)
    except GrammarTooComplex as error:
        refused = error
    else:
        assert family == "qwen3coder"  # its grammar has an element for each property, and no pattern
        return
    left, loosened, notices = relaxed(asked, place, refused, **BOUNDS)
    assert left == asked
    assert [one["function"]["parameters"] for one in loosened.tools] == [WEATHER, schemas.ANY_OBJECT, WEATHER]
    assert notices == [f"the schema of the tool large is not enforced: {TOO_COMPLEX}{why}"]
    again = constraint.build(left, loosened)
    assert again.notices == []
    check(again.tag, bounds)


def test_a_format_stays_if_a_tool_is_beyond_a_limit() -> None:
    parameters, _ = BEYOND[0]
    asked = OutputConstraint(format={"type": "regex", "pattern": "[0-9]+"})
    place = context("hermes3", tool("small"), tool("large", parameters))
    left, loosened, notices = relaxed(asked, place, GrammarTooComplex("much"), **BOUNDS)
    assert left == asked
    assert [one["function"]["parameters"] for one in loosened.tools] == [WEATHER, schemas.ANY_OBJECT]
    assert len(notices) == 1


def test_of_schemas_that_are_too_large_together_the_largest_are_given_up() -> None:
    def of_size(count: int) -> Json:
        return {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(count)}}

    tools = [tool("a", of_size(20)), tool("b", of_size(90)), tool("c", of_size(10)), tool("d", of_size(80))]
    asked, place = OutputConstraint(tool_calls="required"), context("hermes3", *tools)
    _, loosened, notices = relaxed(asked, place, GrammarTooComplex("much"), bytes=3000)
    assert constraint.size(asked, loosened.tools) <= 3000
    kept = [one["function"]["name"] for one in loosened.tools if one["function"]["parameters"] != schemas.ANY_OBJECT]
    assert kept == ["a", "c"]
    assert notices == [
        f"the schema of the tool {name} is not enforced: The schemas have more than 3000 bytes" for name in "bd"
    ]
