"""How a model family writes its tool calls, as a grammar: the inverse of its parser, which the tests compare it with.

A CallForm has the text before, between and after the calls, and writes one call; each tool parser's file has one, FORM,
made of the functions here. What a form cannot write (a name with a blank in XML) is CannotEnforce. Knows no
tool_choice: tool_choice.py does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import GrammarInvalid
from .ebnf import Ebnf, chain, literal
from .json_schema import JsonValues
from .notations import IDENTIFIER, PythonValues, XmlValues
from .schema_keywords import Schema
from .schema_merge import merge

_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


class CannotEnforce(Exception):
    """The family cannot write such a call, or not in a way that a grammar can describe."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. ignored: keywords of its schema that cannot be enforced."""

    name: str
    parameters: Schema
    ignored: set[str]


CallWriter = Callable[[Ebnf, Tool], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """before, after: around all calls; between: two of them. one: a call's expression. forced: what stands before
    `before` where no text may stand between the reasoning and a call.

    trigger: the text that begins a call which the model makes by itself, a prefix of `before` or of every call; "" if a
    call cannot be told from text. alone: a message holds one call only.
    """

    one: CallWriter
    before: str = ""
    between: str = ""
    after: str = ""
    trigger: str = ""
    alone: bool = False
    forced: str = ""


def in_json(name_key: str = "name", arguments_key: str = "arguments", around: tuple[str, str] = ("", "")) -> CallWriter:
    def write(ebnf: Ebnf, tool: Tool) -> str:
        head = f'{around[0]}{{"{name_key}": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments_key}": '
        return f"{literal(head)} {json_object(ebnf, tool)} {literal('}' + around[1])}"

    return write


def json_after(head: str, tail: str = "", names: re.Pattern[str] = _SIMPLE_NAME) -> CallWriter:
    """head has NAME in it."""

    def write(ebnf: Ebnf, tool: Tool) -> str:
        start = literal(head.replace("NAME", function_name(tool, names)))
        return f"{start} {json_object(ebnf, tool)}" + (f" {literal(tail)}" if tail else "")

    return write


def json_object(ebnf: Ebnf, tool: Tool) -> str:
    return arguments_object(JsonValues(ebnf, tool.parameters), tool)


def arguments_object(values: JsonValues, tool: Tool) -> str:
    """The arguments as an object of this notation."""
    body = values.value(_object(tool.parameters))
    tool.ignored.update(values.ignored)
    return body


def _object(parameters: Schema) -> Schema:
    """A tool without parameters takes an empty object; parameters without a type are an object."""
    if parameters in (None, {}, True):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if isinstance(parameters, dict) and not {"type", "$ref", "anyOf", "oneOf", "allOf"} & set(parameters):
        return {"type": "object", **parameters}
    return parameters


def _members(values: JsonValues, tool: Tool) -> tuple[dict[str, Schema], set[str], Schema]:
    whole = merge({}, [_object(tool.parameters)], values.root)
    if not isinstance(whole, dict):
        raise GrammarInvalid("a tool's parameters are not an object")
    tool.ignored.update(word for word in ("anyOf", "oneOf") if word in whole)
    properties, needed, more = values.members(whole)
    if more is not False and properties:
        more = False  # names that the schema does not have are only possible in JSON
    return properties, needed, more


def python_call(ebnf: Ebnf, tool: Tool) -> str:
    values = PythonValues(ebnf, tool.parameters)
    properties, needed, more = _members(values, tool)
    members = []
    for name, schema in properties.items():
        if not IDENTIFIER.fullmatch(name):
            raise CannotEnforce(f"an argument called {name!r}")
        members.append((ebnf.rule(name, f"{literal(name + '=')} {values.value(schema)}"), name in needed))
    other = None if more is False else ebnf.rule("other", f'[a-z_] [a-z0-9_]{{0,63}} "=" {values.value(more)}')
    tool.ignored.update(values.ignored)
    body = chain(ebnf, members, '", "', other)
    return f"{literal(function_name(tool, IDENTIFIER) + '(')} {body} {literal(')')}"


def xml_call(head: str, tail: str, parameter: str, end: str) -> CallWriter:
    """head has NAME in it, parameter KEY, and end may have it.

    head may have INDEX, a number; parameter IS_TEXT for true or false, whether the value is text or JSON, or TYPE for
    the value's type.
    """

    def write(ebnf: Ebnf, tool: Tool) -> str:
        values = XmlValues(ebnf, tool.parameters)
        properties, needed, more = _members(values, tool)
        members = []
        for name, schema in properties.items():
            if not name or re.search(r'[<>"\n]|^\s|\s$', name):
                raise CannotEnforce(f"an argument called {name!r}")
            kind = "true" if values.is_text(schema) else "false"
            typed = parameter.replace("IS_TEXT", kind).replace("TYPE", values.type_of(schema))
            value = values.text_or_value(schema, end.replace("KEY", name))
            members.append((ebnf.rule(name, f"{literal(typed.replace('KEY', name))} {value}"), name in needed))
        tool.ignored.update(values.ignored)
        if more is not False:
            tool.ignored.add("additionalProperties")
        body = chain(ebnf, members, '""', None)
        start = " [0-9]{1,2} ".join(map(literal, head.replace("NAME", function_name(tool)).split("INDEX")))
        return f"{start} {body} {literal(tail)}"

    return write


def function_name(tool: Tool, allowed: re.Pattern[str] = _SIMPLE_NAME) -> str:
    if not allowed.fullmatch(tool.name):
        raise CannotEnforce(f"a function called {tool.name!r}")
    return tool.name
