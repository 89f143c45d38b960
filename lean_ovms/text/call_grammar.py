"""How each model family writes a tool call, as a grammar: the reverse of text/parsers, and held to it by the tests.

A Family says what stands before, between and after the calls, and how one call is written. What it cannot write (a name
with a blank in XML) is CannotForce. Knows no tool_choice: tools.py does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import GrammarInvalid
from .ebnf import Ebnf, literal
from .notations import IDENTIFIER, GemmaValues, PythonValues, XmlValues
from .schema_grammar import Schema, Values, chain
from .schema_merge import merged

_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


class CannotForce(Exception):
    """This family has no way to write such a call, or no way that a grammar can describe."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. ignored: what of its schema could not be imposed."""

    name: str
    parameters: Schema
    ignored: set[str]


Write = Callable[[Ebnf, Tool], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """before, after: around all calls; between: two of them. one: a call's expression.

    trigger: the first text of a call when the model begins one by itself, "" if that cannot be told: a part of before,
    or of every call. alone: a message holds one call only.
    """

    one: Write
    before: str = ""
    between: str = ""
    after: str = ""
    trigger: str = ""
    alone: bool = False


def _in_json(name_key: str = "name", arguments_key: str = "arguments", around: tuple[str, str] = ("", "")) -> Write:
    def write(ebnf: Ebnf, tool: Tool) -> str:
        head = f'{around[0]}{{"{name_key}": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments_key}": '
        return f"{literal(head)} {_json_object(ebnf, tool)} {literal('}' + around[1])}"

    return write


def _json_after(head: str, tail: str = "", names: re.Pattern[str] = _SIMPLE_NAME) -> Write:
    """head has NAME in it."""

    def write(ebnf: Ebnf, tool: Tool) -> str:
        start = literal(head.replace("NAME", _named(tool, names)))
        return f"{start} {_json_object(ebnf, tool)}" + (f" {literal(tail)}" if tail else "")

    return write


def _json_object(ebnf: Ebnf, tool: Tool) -> str:
    return _imposed(Values(ebnf, tool.parameters), tool)


def _imposed(values: Values, tool: Tool) -> str:
    """The arguments as an object of this notation."""
    body = values.value(_object(tool.parameters))
    tool.ignored.update(values.ignored)
    return body


def _object(parameters: Schema) -> Schema:
    """A tool without parameters takes an empty object; parameters are an object, said or not."""
    if parameters in (None, {}, True):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if isinstance(parameters, dict) and not {"type", "$ref", "anyOf", "oneOf", "allOf"} & set(parameters):
        return {"type": "object", **parameters}
    return parameters


def _members(values: Values, tool: Tool) -> tuple[dict[str, Schema], set[str], Schema]:
    whole = merged({}, [_object(tool.parameters)], values.root)
    if not isinstance(whole, dict):
        raise GrammarInvalid("a tool's parameters are not an object")
    tool.ignored.update(word for word in ("anyOf", "oneOf") if word in whole)
    properties, needed, more = values.members(whole)
    if more is not False and properties:
        more = False  # names of its own making are for objects in JSON
    return properties, needed, more


def _python_call(ebnf: Ebnf, tool: Tool) -> str:
    values = PythonValues(ebnf, tool.parameters)
    properties, needed, more = _members(values, tool)
    members = []
    for name, schema in properties.items():
        if not IDENTIFIER.fullmatch(name):
            raise CannotForce(f"an argument called {name!r}")
        members.append((ebnf.rule(name, f"{literal(name + '=')} {values.value(schema)}"), name in needed))
    other = None if more is False else ebnf.rule("other", f'[a-z_] [a-z0-9_]{{0,63}} "=" {values.value(more)}')
    tool.ignored.update(values.ignored)
    body = chain(ebnf, members, '", "', other)
    return f"{literal(_named(tool, IDENTIFIER) + '(')} {body} {literal(')')}"


def _xml_call(head: str, tail: str, parameter: str, end: str) -> Write:
    """head has NAME in it, parameter KEY."""

    def write(ebnf: Ebnf, tool: Tool) -> str:
        values = XmlValues(ebnf, tool.parameters)
        properties, needed, more = _members(values, tool)
        members = []
        for name, schema in properties.items():
            if not name or re.search(r'[<>"\n]|^\s|\s$', name):
                raise CannotForce(f"an argument called {name!r}")
            start = literal(parameter.replace("KEY", name))
            members.append((ebnf.rule(name, f"{start} {values.text_or_value(schema, end)}"), name in needed))
        tool.ignored.update(values.ignored)
        if more is not False:
            tool.ignored.add("additionalProperties")
        body = chain(ebnf, members, '""', None)
        return f"{literal(head.replace('NAME', _named(tool)))} {body} {literal(tail)}"

    return write


def _gemma_call(ebnf: Ebnf, tool: Tool) -> str:
    head = literal(f"call:{_named(tool)}")
    return f"{head} {_imposed(GemmaValues(ebnf, tool.parameters), tool)}"


def _kimi_call(ebnf: Ebnf, tool: Tool) -> str:
    head = literal(f"<|tool_call_begin|>functions.{_named(tool)}:")
    middle, tail = literal("<|tool_call_argument_begin|>"), literal("<|tool_call_end|>")
    return f"{head} [0-9]{{1,2}} {middle} {_json_object(ebnf, tool)} {tail}"


def _named(tool: Tool, allowed: re.Pattern[str] = _SIMPLE_NAME) -> str:
    if not allowed.fullmatch(tool.name):
        raise CannotForce(f"a function called {tool.name!r}")
    return tool.name


_QWEN_CODER = _xml_call(
    "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", "<parameter=KEY>\n", "\n</parameter>\n"
)
_MINICPM = _xml_call('<function name="NAME">', "</function>", '<param name="KEY">', "</param>")
_GLM = _xml_call("<tool_call>NAME\n", "</tool_call>", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n")
_ONYX = _xml_call(
    ' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
    "</atem:invoke>\n</atem:function_calls>",
    '<atem:parameter name="KEY">',
    "</atem:parameter>\n",
)
_DEEPSEEK = _json_after("<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>")
_HARMONY = _json_after("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>")

FAMILIES: dict[str, Family] = {
    "hermes3": Family(one=_in_json(around=("<tool_call>\n", "\n</tool_call>")), between="\n", trigger="<tool_call>"),
    "llama3": Family(one=_in_json(arguments_key="parameters"), between="; ", trigger='{"name": "'),
    "phi4": Family(one=_in_json(), before="functools[", between=", ", after="]", trigger="functools["),
    "mistral": Family(one=_in_json(), before="[TOOL_CALLS][", between=", ", after="]", trigger="[TOOL_CALLS]"),
    "devstral": Family(one=_json_after("[TOOL_CALLS]NAME[ARGS]"), trigger="[TOOL_CALLS]"),
    "gptoss": Family(one=_HARMONY, trigger="<|channel|>commentary to=functions.", alone=True),
    "qwen3coder": Family(one=_QWEN_CODER, between="\n", trigger="<tool_call>"),
    "lfm2": Family(
        one=_python_call,
        before="<|tool_call_start|>[",
        between=", ",
        after="]<|tool_call_end|>",
        trigger="<|tool_call_start|>",
    ),
    "gemma4": Family(one=_gemma_call, before="<|tool_call>", after="<tool_call|>", trigger="<|tool_call>"),
    "onyx": Family(one=_ONYX, alone=True),
    "minicpm5": Family(one=_MINICPM, between="\n", trigger='<function name="'),
    "deepseek_v3": Family(
        one=_DEEPSEEK,
        before="<｜tool▁calls▁begin｜>",
        between="\n",
        after="<｜tool▁calls▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
    ),
    "kimi_k2": Family(
        one=_kimi_call,
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
        trigger="<|tool_calls_section_begin|>",
    ),
    "glm4_moe": Family(one=_GLM, between="\n", trigger="<tool_call>"),
    "granite": Family(one=_in_json(), before="<|tool_call|>[", between=", ", after="]", trigger="<|tool_call|>"),
    "pythonic": Family(one=_python_call, before="[", between=", ", after="]"),
    "internlm2": Family(
        one=_in_json(arguments_key="parameters", around=("<|action_start|><|plugin|>\n", "<|action_end|>")),
        between="\n",
        trigger="<|action_start|><|plugin|>",
    ),
    "jamba": Family(
        one=_in_json(),
        before="<tool_calls>[\n    ",
        between=",\n    ",
        after="\n]</tool_calls>",
        trigger="<tool_calls>",
    ),
    "olmo3": Family(
        one=_python_call, before="<function_calls>", between="\n", after="</function_calls>", trigger="<function_calls>"
    ),
}
"""By the name of the tool parser. One without an entry cannot be forced."""
