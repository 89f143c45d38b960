"""Chat templates of the families, and a server without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.model_families.base import ModelFamily
from lean_ovms.features.model_families.call_forms import in_json
from lean_ovms.features.model_families.json_calls import EnclosedJson
from lean_ovms.features.model_families.registry import ParserRegistry, registry
from lean_ovms.grammar.call_syntax import CallForm, OutputForm
from lean_ovms.manifest import ParserRow
from lean_ovms.models.chat_format import answer_format
from lean_ovms.types import OutputParams, Reasoning, Text, ToolCallStart

DATA = Path(__file__).parents[2] / "data" / "chat_templates"
TOOLS = [{"type": "function", "function": {"name": "f"}}]
PARSERS = registry()

RULES = [
    ("<tool_call></tool_call>", ("hermes3", None)),
    ("<tool_call></tool_call><think>", ("hermes3", "qwen3")),
    ("<tool_call></tool_call>content.split('</think>')", ("hermes3", "qwen3")),
    ("<tool_call></tool_call><tool_response></tool_response>", ("hermes3", None)),
    ("<think>", (None, "qwen3")),
    ("content.split('</think>')", (None, "qwen3")),
    ("plain", (None, None)),
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
    ("[TOOL_CALLS][ARGS] [THINK][/THINK]", ("devstral", "mistral")),
    ("[THINK][/THINK]", ("mistral", "mistral")),
    ("[AVAILABLE_TOOLS] [/AVAILABLE_TOOLS]", ("mistral", None)),
    ("[AVAILABLE_TOOLS]", (None, None)),
    ("<|python_tag|>", ("llama3", None)),
    ("<tool_call></tool_call><arg_key><think>", ("glm4_moe", "qwen3")),
    ("<｜tool▁calls▁begin｜>```json content.split('</think>')", ("deepseek_v3", "qwen3")),
    ("<｜tool▁calls▁begin｜>content.split('</think>')", ("deepseek_v31", "qwen3")),
    ("'｜DSML｜' + 'function_calls>' tool_calls", ("deepseek_v32", None)),
    ("'｜DSML｜' + 'tool_calls>' <think>", ("deepseek_v4", "deepseek_v4")),
    ("<|tool_calls_section_begin|>", ("kimi_k2", None)),
    ("<|action_start|><|plugin|>", ("internlm2", None)),
    ("<tool_calls></tool_calls>", ("jamba", None)),
    ("'<TOOLCALL>[' ']</TOOLCALL>' '<think></think>'", ("nemotron_json", "qwen3")),
    ("<tool_call>\\n<function=a>\\n<parameter=b></parameter> '<think></think>'", ("qwen3coder", "qwen3")),
    ("<tool_calls></tool_calls><|extra_0|>", ("hunyuan_a13b", "hunyuan_a13b")),
    ("<tool_call></tool_call><response></response>", ("ernie45", "ernie45")),
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
    ('{"name": function name, "parameters": dictionary of argument name and its value}', ("llama3", None)),
    ("<tool_calls> <tool_call></tool_call> [BEGIN FINAL RESPONSE]", ("apriel", "apriel")),
    ("<|tool_call:begin|> <|think|>", ("solar_open", "solar_open")),
    ("<|tool_call:start|> <|tool_arg:start|>", ("solar_open2", "solar_open2")),
    ("<longcat_tool_call>", ("longcat", None)),
    ("<longcat_tool_call> /think_on", ("longcat", "longcat")),
    ("'<tool_calls' + S + '<tool_call' + S + '<tool_sep' + S + '<arg_key' + S", ("hy_v3", "hy_v3")),
    ("'<｜hy_User' '<tool_calls' + S + '<tool_call' + S + '<arg_key' + S", ("hy_v4", "hy_v4")),
]


def test_detection_by_the_template() -> None:
    assert [(source, PARSERS.detect(source)) for source, _ in RULES] == RULES


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


def test_detection_on_real_templates() -> None:
    sources = {name: (DATA / f"chat_template_{name}.jinja").read_text() for name in TEMPLATES}
    assert {name: PARSERS.detect(source) for name, source in sources.items()} == TEMPLATES


ACME = ModelFamily(
    tools=EnclosedJson.variant(tags=("<acme:call>", "</acme:call>")),
    form=CallForm(one=in_json(around=("<acme:call>", "</acme:call>")), trigger="<acme:call>"),
)


def test_a_family_of_another_feature_is_a_row_and_a_constant() -> None:
    row = ParserRow("acme", "test_families:ACME", marks=(("<acme:call>",),), rank=5, package=__package__)
    parsers = ParserRegistry((*PARSERS.rows.values(), row))
    assert parsers.detect("<acme:call> <|channel|>") == ("acme", None)
    events = parsers.make("acme", None, tools=TOOLS).feed('<acme:call>{"name": "f", "arguments": {}}</acme:call>')
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["f"]
    assert parsers.output_form("acme", None).calls is ACME.form


def test_without_them_answers_are_text_whatever_the_template_shows() -> None:
    config = Config(without="model_families")
    answers = answer_format(config, "x <|channel|> <tool_call></tool_call> y")
    assert (answers.tool_parser, answers.reasoning_parser) == (None, None)
    assert answers.parser(OutputParams(parse=True, tools=tuple(TOOLS)), "<think>") == (None, ())
    assert not answers.opens_reasoning("<think>")
    assert answers.form("<think>") == OutputForm()
    assert answers.write_calls([("f", {"a": 1})]) == '{"name": "f", "arguments": {"a": 1}}'
    with pytest.raises(StartError, match="unrecognized arguments"):
        parse(["--without", "model_families", "--tool_parser", "gptoss"], {})


def test_parsers_are_shown_the_special_tokens_that_they_read() -> None:
    output = OutputParams(parse=True, tools=tuple(TOOLS))
    rows = (
        ("hermes3", "qwen3", {"<tool_call>", "</tool_call>", "<think>", "</think>"}),
        ("lfm2", "qwen3", {"<think>", "<|tool_call_start|>", "<|im_end|>"}),
        ("gemma4", "none", {"<|tool_call>", '<|"|>'}),
        ("devstral", "none", {"[TOOL_CALLS]", "[ARGS]"}),
        ("none", "gptoss", {"<|channel|>", "<|end|>"}),
        ("none", "none", set()),
    )
    for tool, reasoning, read in rows:
        _, tags = answer_format(Config(tool_parser=tool, reasoning_parser=reasoning), "x").parser(output, "")
        assert read <= {*tags}


def test_reasoning_that_is_not_wanted_is_text_unless_calls_are_read_by_the_same_parser() -> None:
    output = OutputParams(parse=True, tools=tuple(TOOLS), parse_reasoning=False)
    parser, _ = answer_format(Config(tool_parser="hermes3", reasoning_parser="qwen3"), "x").parser(output, "")
    assert parser is not None
    assert parser.feed("<think>why</think>") == [Text("<think>why</think>")]
    parser, _ = answer_format(Config(tool_parser="gptoss", reasoning_parser="gptoss"), "x").parser(output, "")
    assert parser is not None
    assert parser.feed("<|channel|>analysis<|message|>why<|end|>") == [Reasoning("why")]
