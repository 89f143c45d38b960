"""Formats of calls, for grammars, that several families have: a text and JSON or Python, or an element per argument.

They are the counterparts of the parsers of such calls.
"""

from __future__ import annotations

import json
import re

from ...errors import GrammarInvalid
from ...grammar import formats
from ...grammar.call_syntax import CallWriter, CannotEnforce, Tool
from ...grammar.schema import Schema, flat
from ...types import Json

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
INDEX = formats.regex("[0-9]{1,2}")
_DEFINITIONS = ("$defs", "definitions")


def arguments_after(head: str, tail: str = "", style: str = "json") -> CallWriter:
    """Makes the format of calls that consist of a text, the arguments and another text.

    Args:
        head: The text before the arguments, in which NAME stands for the function's name.
        tail: The text after the arguments.
        style: The notation of the arguments.
    """

    def write(tool: Tool) -> Json:
        start = head.replace("NAME", function_name(tool))
        return formats.tag(start, formats.json_value(tool.parameters, style), tail)

    return write


def python_call(tool: Tool) -> Json:
    """Returns the format of a call in Python. Raises CannotEnforce if a name is no identifier of Python."""
    for name in _properties(tool):
        if not IDENTIFIER.fullmatch(name):
            raise CannotEnforce(f"an argument called {name!r}")
    arguments = formats.json_value(tool.parameters, "python_arguments")
    return formats.tag(function_name(tool, IDENTIFIER) + "(", arguments, ")")


def xml_call(head: str, tail: str, parameter: str, end: str) -> CallWriter:
    """Makes the format of calls in XML elements. `head` contains NAME, and `parameter` contains KEY, as `end` may.

    `head` may contain INDEX, a number. `parameter` may contain IS_TEXT, which is true or false for values in text or
    JSON, or TYPE, the type of the value.
    """

    def write(tool: Tool) -> Json:
        whole = flat(tool.parameters, tool.parameters)
        needed = whole.get("required", ()) if isinstance(whole, dict) else ()
        members = []
        before_key, closing = parameter.partition("KEY")[0].rstrip("\"'"), tail.strip().partition("\n")[0]
        for name, schema in _properties(tool).items():
            if not name or re.search(r'[<>"\n]|^\s|\s$', name):
                raise CannotEnforce(f"an argument called {name!r}")
            value = _Value(tool, schema)
            kind = "true" if value.is_text else "false"
            start = parameter.replace("IS_TEXT", kind).replace("TYPE", value.type).replace("KEY", name)
            member = formats.sequence(formats.text(start), value.until(end.replace("KEY", name), (before_key, closing)))
            members.append(member if name in needed else formats.optional(member))
        if isinstance(whole, dict):
            unnamed = {word for word in ("anyOf", "oneOf") if word in whole}
            more = whole.get("additionalProperties", False)
            known = more is False or (more is True and not members)  # which parameters there may be is enforced
            tool.ignored.update(unnamed, [] if known else ["additionalProperties"])
        first, *rest = head.replace("NAME", function_name(tool)).split("INDEX")
        numbers = [part for text in rest for part in (INDEX, formats.text(text))]
        if not members and isinstance(whole, dict) and whole.get("additionalProperties"):  # any parameters
            return formats.tag(first, formats.sequence(*numbers, formats.until(tail.lstrip())), "")
        return formats.tag(first, formats.sequence(*numbers, *members), tail)

    return write


def function_name(tool: Tool, allowed: re.Pattern[str] = _SIMPLE_NAME) -> str:
    """Returns the name of a tool. Raises CannotEnforce if it does not match `allowed`."""
    if not allowed.fullmatch(tool.name):
        raise CannotEnforce(f"a function called {tool.name!r}")
    return tool.name


def _properties(tool: Tool) -> dict[str, Schema]:
    whole = flat(tool.parameters, tool.parameters)
    if not isinstance(whole, dict):
        raise GrammarInvalid("the parameters of a tool are not an object")
    found: dict[str, Schema] = whole.get("properties", {})
    return found


class _Value:
    """The value of a parameter in an element: plain text if its schema allows strings, else JSON."""

    def __init__(self, tool: Tool, schema: Schema) -> None:
        self._tool = tool
        self._schema = schema
        self._whole = flat(tool.parameters, schema)
        self._words = _words(self._whole)
        self.is_text = not isinstance(self._whole, dict) or bool(self._words) or self._strings(self._whole)

    @property
    def type(self) -> str:
        """The name of its JSON type; integers are numbers."""
        kind = "string" if self.is_text or not isinstance(self._whole, dict) else self._whole.get("type", "object")
        kinds = kind if isinstance(kind, list) else [kind]
        kind = next((k for k in kinds if k != "null"), "null")
        return "number" if kind == "integer" else str(kind)

    def until(self, end: str, followers: tuple[str, str]) -> Json:
        """Returns the format of a value and of its element's end tag, after which one of the followers comes.

        These are the beginning of another parameter, and the end of the call. The text of a value must not contain an
        end tag before one of them, which would end the value, nor the beginning of a parameter on a line of its own.
        """
        if not self.is_text:
            return formats.sequence(formats.json_value(self._alone()), formats.text(end))
        if self._words:
            return formats.sequence(formats.either(*map(formats.text, self._words)), formats.text(end))
        whole = self._whole if isinstance(self._whole, dict) else {}
        self._tool.ignored.update(word for word in ("pattern", "oneOf") if word in whole)
        least, most = whole.get("minLength", 0), whole.get("maxLength")
        if not least and most is None:
            tag, (key, _) = end.strip(), followers
            ends = [f"\n{key}", *(tag + blank + after for blank in ("", " ", "\n") for after in followers)]
            return formats.until(end, formats.ANY_VALUE if tag == end else {**formats.ANY_VALUE, "excludes": ends})
        counted = formats.regex(f"[^<]{{{int(least)},{'' if most is None else int(most)}}}")
        return formats.sequence(counted, formats.text(end))

    def _alone(self) -> Schema:
        """Returns the schema of the value, with the definitions that it refers to."""
        if not isinstance(self._schema, dict) or not isinstance(self._tool.parameters, dict):
            return self._schema
        root = self._tool.parameters
        named = {key: root[key] for key in _DEFINITIONS if key in root} if '"$ref"' in json.dumps(self._schema) else {}
        return {**self._schema, **named}

    def _strings(self, schema: Json, depth: int = 4) -> bool:
        """Returns whether a schema allows strings."""
        for word in ("anyOf", "oneOf"):
            if (parts := schema.get(word)) and depth:
                wholes = [flat(self._tool.parameters, part) for part in parts]
                return any(not isinstance(w, dict) or self._strings(w, depth - 1) for w in wholes)
        if choices := schema.get("enum"):
            return any(isinstance(c, str) for c in choices)
        kind = schema.get("type")
        if kind is None:
            return not any(w in schema for w in ("properties", "items", "minimum", "maximum", "const"))
        return "string" in (kind if isinstance(kind, list) else [kind])


def _words(whole: Schema) -> list[str]:
    """Returns the strings that a schema lists as allowed values, if it lists only strings."""
    if not isinstance(whole, dict):
        return []
    choices = [whole["const"]] if "const" in whole else whole.get("enum", [])
    words = [c for c in choices if isinstance(c, str)]
    return words if words == choices else []


def in_json(
    name_key: str = "name", arguments_key: str = "arguments", around: tuple[str, str] = ("", ""), style: str = "json"
) -> CallWriter:
    """Returns the writer of tool calls that are JSON objects.

    Args:
        name_key: The key of the function's name.
        arguments_key: The key of its arguments.
        around: The texts before and after the object.
        style: The notation of the arguments.
    """

    def write(tool: Tool) -> Json:
        head = f'{around[0]}{{"{name_key}": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments_key}": '
        return formats.tag(head, formats.json_value(tool.parameters, style), "}" + around[1])

    return write
