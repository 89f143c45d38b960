"""The manifest of the model families: the parsers of tool calls and reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option
from ...errors import WrongOptions
from ...manifest import ANSWER_FORMATS, TEMPLATE_READERS, BodyRow, Feature, ParserRow, PartRow

NONE = "none"
"""The value of an option that leaves calls or reasoning in the text."""
_model = partial(option, group="model", common=True)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ParserOptions(Options):
    """The parsers of a model: one for its tool calls, and one for its reasoning."""

    tool_parser: str = _model(
        "",
        "parser for tool calls, such as hermes3 (docs/coming_from.md lists them); chosen by the chat template if "
        "empty, with generic as the fallback; none leaves tool calls in the text",
    )
    reasoning_parser: str = _model(
        "",
        "parser for reasoning, such as qwen3 (docs/coming_from.md lists them); chosen by the chat template if empty; "
        "none leaves reasoning in the text",
    )

    def check(self, config: Any) -> None:
        """Raises WrongOptions if a parser of one of the names does not exist."""
        if self.tool_parser or self.reasoning_parser:
            rows = config.composition.parsers
            _check("tool_parser", self.tool_parser, [row.name for row in rows if row.tools])
            _check("reasoning_parser", self.reasoning_parser, [row.name for row in rows if row.reasoning])


def _check(option: str, value: str, names: list[str]) -> None:
    if value not in ("", NONE, *names):
        raise WrongOptions(f"--{option} must be {NONE} or one of {', '.join(sorted(names))}, not {value!r}")


THINKS = ("<think>", "content.split('</think>')", 'content.split("</think>")')
"""Marks of chat templates of models that think between <think> and </think>."""

# The rules of rank 10 to 100 are OVMS's, in its order: plain substrings, the first match wins. The families beyond OVMS
# are placed where it would choose a parser that cannot read the format, or none. Those that share tags are tried in the
# order of what else is in their templates:
# - seed_oss before qwen3coder: the same elements between other tags
# - xlam before llama3 and hermes3, on whose templates these models' are built
# - hy_v3 before glm4_moe, hermes3 and hunyuan_a13b: some of the same tags
# - glm4_moe before hermes3: the same tags with another format inside
# - ernie45 before hermes3: the same tags around calls
# - apriel before hermes3 and jamba: the same tags
# - deepseek_v3, whose templates show the fence around its arguments, before deepseek_v31
# - hunyuan_a13b before jamba: the same tags
FAMILIES = (
    ParserRow("gptoss", "gptoss:GPTOSS", reasoning=True, rank=10, marks=(("<|channel|>",),), reasoner="gptoss"),
    ParserRow("onyx", "onyx:ONYX", reasoning=True, rank=20,
        marks=(("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),), reasoner="onyx"),
    ParserRow("gemma4", "gemma4:GEMMA4", reasoning=True, rank=30, marks=(("<|tool_call>call:",),), reasoner="gemma4"),
    ParserRow("functiongemma", "gemma4:FUNCTIONGEMMA", rank=33, marks=(("<start_function_call>",),)),
    ParserRow("seed_oss", "xml_families:SEED_OSS", reasoning=True, rank=35,
        marks=(("<seed:tool_call>",), ("<seed:think>",)), reasoner="seed_oss"),
    ParserRow("qwen3coder", "xml_families:QWEN3CODER", rank=40,
        marks=(("<parameter=", "</parameter>", "<function="),), reasoner="qwen3",
        reasoner_marks=("<think>", "</think>")),
    ParserRow("minicpm5", "xml_families:MINICPM5", reasoning=True, rank=50, marks=(('<param name="',),),
        reasoner="minicpm5"),
    ParserRow("hy_v3", "hy_v3:HY_V3", reasoning=True, rank=53, marks=(("tool_sep", "arg_key", "tool_calls"),),
        reasoner="hy_v3"),
    ParserRow("hy_v4", "hy_v3:HY_V4", reasoning=True, rank=54,
        marks=(("arg_key", "tool_calls", "｜hy_"), ("arg_key", "tool_calls", "hy_Assistant")), reasoner="hy_v4"),
    ParserRow("lfm2", "python_families:LFM2", reasoning=True, rank=60,
        marks=(("<|assistant_tool_call|>",), ("<|tool_call_start|>",), ("keep_past_thinking",)), reasoner="lfm2",
        reasoner_marks=("message.thinking",)),
    ParserRow("gigachat31", "gigachat3:GIGACHAT31", rank=61,
        marks=(("<|function_call|>", "<|role_sep|>"), ("<|function_call|>", "<|message_sep|>"))),
    ParserRow("gigachat3", "gigachat3:GIGACHAT3", rank=62,
        marks=(("<|message_sep|>", "<|role_sep|>", "function call"), ("function call<|role_sep|>",))),
    ParserRow("phi4", "json_families:PHI4", rank=70, marks=(("functools",),)),
    ParserRow("devstral", "mistral:DEVSTRAL", rank=80, marks=(("[TOOL_CALLS]", "[ARGS]"),), reasoner="mistral",
        reasoner_marks=("[THINK]",)),
    ParserRow("mistral", "mistral:MISTRAL", reasoning=True, rank=90,
        marks=(("[TOOL_CALLS]",), ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"), ("[THINK]", "[/THINK]")),
        reasoner="mistral", reasoner_marks=("[THINK]",)),
    ParserRow("xlam", "xlam:XLAM", rank=95, marks=(("make calls in a single JSON array",),), reasoner="qwen3",
        reasoner_marks=THINKS),
    ParserRow("k2_horizon", "k2_horizon:K2_HORIZON", reasoning=True, rank=96,
        marks=(("<ifm|tool_call",), ("<ifm|think",)), reasoner="k2_horizon"),
    ParserRow("longcat", "longcat:LONGCAT", reasoning=True, rank=97,
        marks=(("<longcat_tool_call>",), ("<longcat_think>",)), reasoner="longcat",
        reasoner_marks=("<longcat_think>", "longcat_think", "/think_on")),
    ParserRow("plamo3", "plamo3:PLAMO3", reasoning=True, rank=98,
        marks=(("plamo:begin_tool_request",), ("begin_tool_request", ":plamo|>")), reasoner="plamo3"),
    ParserRow("inkling", "inkling:INKLING", reasoning=True, rank=99,
        marks=(("<|message_model|>", "<|content_text|>"), ("<|content_invoke_tool_json|>",)), reasoner="inkling"),
    ParserRow("llama3", "json_families:LLAMA3", rank=100,
        marks=(("<|python_tag|>",), ('{"name": function name, "parameters": dictionary of argument name',))),
    ParserRow("cohere_command", "cohere_command:COHERE_COMMAND", reasoning=True, rank=105,
        marks=(("<|START_ACTION|>",),), reasoner="cohere_command", reasoner_marks=("<|START_THINKING|>",)),
    ParserRow("solar_open", "solar:SOLAR_OPEN", reasoning=True, rank=106, marks=(("<|tool_call:begin|>",),),
        reasoner="solar_open"),
    ParserRow("solar_open2", "solar:SOLAR_OPEN2", reasoning=True, rank=107, marks=(("<|tool_arg:start|>",),),
        reasoner="solar_open2"),
    ParserRow("minimax_m3", "minimax_m3:MINIMAX_M3", reasoning=True, rank=108,
        marks=(("]<]minimax[>[",), ("<mm:think>",)), reasoner="minimax_m3"),
    ParserRow("glm4_moe", "xml_families:GLM4_MOE", rank=110, marks=(("<tool_call>", "<arg_key>"),), reasoner="qwen3",
        reasoner_marks=THINKS),
    ParserRow("ernie45", "json_families:ERNIE45", reasoning=True, rank=115,
        marks=(("<tool_call>", "<response>"), ("<global_setting>", "think_mode")), reasoner="ernie45"),
    ParserRow("apriel", "json_families:APRIEL", reasoning=True, rank=117, marks=(("[BEGIN FINAL RESPONSE]",),),
        reasoner="apriel"),
    ParserRow("deepseek_v41", "deepseek_v32:DEEPSEEK_V41", reasoning=True, rank=125, marks=(("｜DSML｜", " calls>"),),
        reasoner="deepseek_v41", reasoner_marks=THINKS),
    ParserRow("deepseek_v32", "deepseek_v32:DEEPSEEK_V32", reasoning=True, rank=126,
        marks=(("｜DSML｜", "function_calls>"),), reasoner="deepseek_v32", reasoner_marks=THINKS),
    ParserRow("deepseek_v4", "deepseek_v32:DEEPSEEK_V4", reasoning=True, rank=127,
        marks=(("｜DSML｜", "tool_calls>"),), reasoner="deepseek_v4", reasoner_marks=THINKS),
    ParserRow("deepseek_v3", "deepseek_v3:DEEPSEEK_V3", rank=130, marks=(("<｜tool▁calls▁begin｜>", "```json"),),
        reasoner="qwen3", reasoner_marks=THINKS),
    ParserRow("deepseek_v31", "deepseek_v3:DEEPSEEK_V31", rank=135, marks=(("<｜tool▁calls▁begin｜>",),),
        reasoner="qwen3", reasoner_marks=THINKS),
    ParserRow("kimi_k3", "kimi_k3:KIMI_K3", reasoning=True, rank=138, marks=(("<|open|>", "<|close|>", "<|sep|>"),),
        reasoner="kimi_k3"),
    ParserRow("kimi_k2", "kimi_k2:KIMI_K2", reasoning=True, rank=140, marks=(("<|tool_calls_section_begin|>",),),
        reasoner="kimi_k2", reasoner_marks=THINKS),
    ParserRow("internlm2", "json_families:INTERNLM2", rank=150, marks=(("<|action_start|>", "<|plugin|>"),),
        reasoner="qwen3", reasoner_marks=THINKS),
    ParserRow("hunyuan_a13b", "hunyuan_a13b:HUNYUAN_A13B", reasoning=True, rank=155,
        marks=(("<tool_calls>", "<|extra_0|>"),), reasoner="hunyuan_a13b"),
    ParserRow("jamba", "json_families:JAMBA", rank=160, marks=(("<tool_calls>",),), reasoner="qwen3",
        reasoner_marks=THINKS),
    ParserRow("nemotron_json", "json_families:NEMOTRON_JSON", rank=165, marks=(("<TOOLCALL>", "</TOOLCALL>"),),
        reasoner="qwen3", reasoner_marks=("<think>", "</think>")),
    ParserRow("olmo3", "python_families:OLMO3", rank=170, marks=(("<function_calls>",),), reasoner="qwen3",
        reasoner_marks=THINKS),
    ParserRow("granite", "json_families:GRANITE", reasoning=True, rank=180, marks=(("<|tool_call|>",),),
        reasoner="qwen3", reasoner_marks=THINKS),
    ParserRow("granite_20b_fc", "json_families:GRANITE_20B_FC", rank=185, marks=(("<|function_call_library|>",),)),
    ParserRow("apertus", "apertus:APERTUS", reasoning=True, rank=190, marks=(("<|tools_prefix|>",),),
        reasoner="apertus", reasoner_marks=("<|inner_prefix|>",)),
    ParserRow("minimax_m2", "xml_families:MINIMAX_M2", reasoning=True, rank=192, marks=(("<minimax:tool_call>",),),
        reasoner="minimax_m2"),
    ParserRow("dots", "xml_families:DOTS", rank=193, marks=(("<dots_function_call>",),), reasoner="qwen3",
        reasoner_marks=("<think>", "</think>")),
    ParserRow("step3", "xml_families:STEP3", rank=195, marks=(("<steptml:invoke",), ("<｜tool_calls_begin｜>",)),
        reasoner="deepseek_r1"),
    ParserRow("hermes3", "hermes:HERMES3", rank=120, marks=(("<tool_call>", "</tool_call>"),), reasoner="qwen3",
        reasoner_marks=THINKS),
    ParserRow("generic", "hermes:GENERIC"),
    # The last row, because it matches every template with reasoning.
    ParserRow("qwen3", "think_tags:QWEN3", tools=False, reasoning=True, rank=1000,
        marks=tuple((mark,) for mark in THINKS), reasoner="qwen3"),
    ParserRow("deepseek_r1", "think_tags:DEEPSEEK_R1", tools=False, reasoning=True),
    ParserRow("minimax_m2_append_think", "xml_families:MINIMAX_M2_APPEND_THINK", tools=False, reasoning=True),
    ParserRow("pythonic", "python_families:PYTHONIC"),
)  # fmt: skip

FEATURE = Feature(
    name="model_families",
    needs=("chat",),
    summary=(
        "supports the chat formats, tool calls and reasoning of Qwen, gpt-oss, Gemma, DeepSeek and 30 "
        "other model families"
    ),
    options=ParserOptions,
    flags="flags.txt",
    parts=(
        PartRow(seam=ANSWER_FORMATS, make="registry:FamilyAnswers"),
        PartRow(seam=TEMPLATE_READERS, make="arrange:ProbedTemplate"),
    ),
    parsers=FAMILIES,
    body=BodyRow(
        names=("reasoning", "thinking", "enable_thinking", "think"),
        fields="other_names:FIELDS",
        rewrite="other_names:rewrite",
    ),
)
