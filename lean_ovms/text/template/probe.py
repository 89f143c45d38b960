"""Find out what a chat template can read by rendering small probes when it is loaded.

Its output is more reliable than its source: macros, filters and renamed variables all count. Rendering is a function
that is passed in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ...types import Json
from .messages import Capabilities

Render = Callable[[list[Json], list[Json], bool, Json], str]
"""(messages, tools, add_generation_prompt, template arguments) to text; may raise anything."""

_NEEDLE = "probe9needle"
_NEEDLES = (_NEEDLE, "second9needle")
_PARTS = [{"type": "text", "text": needle} for needle in _NEEDLES]
_TOOL: Json = {
    "type": "function",
    "function": {"name": "test_tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_DUMPED = re.compile(r"""['"]type['"]""")
_TOOL_FIELDS: dict[str, Json] = {"tool": {"tool_call_id": "call00001", "name": "test_tool"}}
_ARGUMENTS: dict[str, object] = {"object": {_NEEDLE: "value"}, "string": json.dumps({_NEEDLE: "value"})}
_THINKING = re.compile(r"\.thinking\b|\[['\"]thinking['\"]\]|get\(['\"]thinking['\"]")
_NATIVE = ('"{}": "', '"{}":"', "<parameter={}>", '<atem:parameter name="{}">', '<param name="{}">', "{}:<|", "{}=")
"""How the model families write an argument of a call that their template read as an object."""


def probe(source: str, render: Render, content_format: str) -> Capabilities:
    """Returns a template's capabilities. content_format: "auto", or "string" or "openai" where the operator knows."""
    if content_format == "auto":
        parts = _is_shown(render, [{"role": "user", "content": _PARTS}])
        strings = not parts or _is_shown(render, [{"role": "user", "content": " ".join(_NEEDLES)}])
    else:
        parts, strings = False, content_format == "string"
    hey: Json = {"role": "user", "content": "Hey" if strings else [{"type": "text", "text": "Hey"}]}
    arguments = _arguments(render, hey) if "tool_calls" in source else "any"
    calls = [_call(_ARGUMENTS["string" if arguments == "string" else "object"])]
    return Capabilities(
        parts=_roles_with_parts(render, hey, calls) if parts else frozenset(),
        strings=strings,
        null=_null_form(render, hey, calls),
        arguments=arguments,
        thinking=_THINKING.search(source) is not None,
    )


def _is_shown(render: Render, messages: list[Json]) -> bool:
    """Returns whether all of the content is rendered as text, and not as the dump of a list."""
    text = _try(render, messages)
    return all(needle in text and not _DUMPED.search(text.partition(needle)[0][-40:]) for needle in _NEEDLES)


def _roles_with_parts(render: Render, hey: Json, calls: list[Json]) -> frozenset[str]:
    """Returns the roles whose content may be parts: some templates read them in a user's message only (Devstral)."""
    call: Json = {"role": "assistant", "content": "", "tool_calls": calls}
    around: dict[str, tuple[list[Json], list[Json]]] = {
        "system": ([], [hey]),
        "developer": ([], [hey]),
        "user": ([], []),
        "assistant": ([hey], [hey]),
        "tool": ([hey, call], []),
    }
    return frozenset(
        role
        for role, (before, after) in around.items()
        if _is_shown(render, [*before, {"role": role, "content": _PARTS, **_TOOL_FIELDS.get(role, {})}, *after])
    )


def _null_form(render: Render, hey: Json, calls: list[Json]) -> str:
    """Returns the form of "no content" in a message with calls that the template renders best.

    Among equals in the order of the contract (OVMS leaves null), of transformers from 5.20 on (the key is missing), and
    the empty string. A template may fail only later in a conversation (QwQ).
    """
    ways: dict[str, Json] = {"null": {"content": None}, "missing": {}, "empty": {"content": ""}}

    def score(way: str) -> int:
        call = {"role": "assistant", **ways[way], "tool_calls": calls}
        talk = [
            hey,
            call,
            {"role": "tool", "content": "15", **_TOOL_FIELDS["tool"]},
            {"role": "assistant", "content": "Ho"},
            hey,
        ]
        texts = [_try(render, talk[:end]) for end in (2, 3, 5)]
        return sum(bool(text) and "None" not in text.partition("Hey")[2] for text in texts)

    return max(ways, key=score)


def _arguments(render: Render, hey: Json) -> str:
    """Returns the form that the arguments of earlier calls must have. A template that reads both forms gets objects.

    First by how the model families write arguments, then by which form does not fail. Some templates write calls only
    when there are tools (Falcon 3).
    """
    for tools in ([], [_TOOL]):
        texts = {
            form: _try(render, [hey, {"role": "assistant", "content": "", "tool_calls": [_call(arguments)]}], tools)
            for form, arguments in _ARGUMENTS.items()
        }
        for form, text in texts.items():
            if any(native.format(_NEEDLE) in text for native in _NATIVE):
                return form
        understood = [form for form, text in texts.items() if _NEEDLE in text]
        if len(understood) == 1:
            return understood[0]
    return "any"


def _call(arguments: object) -> Json:
    return {"id": "call00001", "type": "function", "function": {"name": "test_tool", "arguments": arguments}}


def _try(render: Render, messages: list[Json], tools: list[Json] | None = None) -> str:
    """Returns a probe's text; "" if the template raises."""
    try:
        return render(messages, tools or [], False, {})
    except Exception:  # a template is a program: it can fail in every way that Python can
        return ""
