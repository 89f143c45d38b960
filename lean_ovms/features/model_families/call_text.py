"""Writes tool calls with known arguments as text, in the only form that the family's grammar allows for them.

It is used for a chat template that does not render calls, and for the example from which a model learns the notation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import GrammarInvalid
from ...grammar.call_syntax import CallForm, CannotEnforce, Tool
from ...grammar.notations import STYLES
from ...types import Json


class WrittenCall(NamedTuple):
    """A tool call in a message of a conversation."""

    name: str
    """The function's name."""
    arguments: Any
    """The arguments: an object, or whatever else a client sent."""


def calls_text(form: CallForm | None, calls: Sequence[WrittenCall]) -> str:
    """Returns the text of the tool calls of one message. Calls that the form cannot write are plain JSON."""
    try:
        if form is None:
            raise CannotEnforce("the model's family has no fixed form of calls")
        ones = [_text(form.one(_tool_of(call))) for call in calls]
    except (CannotEnforce, GrammarInvalid):
        return "\n".join(json.dumps(call._asdict(), ensure_ascii=False) for call in calls)
    return form.before + form.between.join(ones) + form.after


def _tool_of(call: WrittenCall) -> Tool:
    """Returns a tool whose schema allows exactly these arguments. Raises CannotEnforce if they are not an object."""
    if not isinstance(call.arguments, dict):
        raise CannotEnforce("the arguments are not an object")
    constants = {name: {"const": value} for name, value in call.arguments.items()}
    return Tool(call.name, {"type": "object", "properties": constants, "required": [*constants]}, set())


def _text(form: Json) -> str:
    """Returns the only text that a format allows; the number of a call is 0."""
    kind = form["type"]
    if kind == "const_string":
        return str(form["value"])
    if kind == "tag":
        return f"{form['begin']}{_text(form['content'])}{form['end']}"
    if kind == "sequence":
        return "".join(map(_text, form["elements"]))
    if kind == "json_schema":
        return _written(form.get("style", "json"), _value(form["json_schema"]))
    return "0"


def _written(style: str, value: Any) -> str:
    """Returns a value in the notation of a style. The arguments of a Python call must be an object."""
    if style not in STYLES:
        return json.dumps(value, ensure_ascii=False)
    values = STYLES[style]
    if style == "python_arguments":
        return ", ".join(f"{name}={values.written(one)}" for name, one in value.items())
    return values.written(value)


def _value(schema: Json) -> Any:
    if "const" in schema:
        return schema["const"]
    return {name: part["const"] for name, part in schema["properties"].items()}
