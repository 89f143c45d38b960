"""Tools, calls and results as texts, for a chat template that does not show them.

Every chat model can be told in a system text which functions there are and how it calls them; what it called and what
came back are then texts of the assistant and of the user, which arrange.py puts where the template shows them. Knows no
parsers: how a call is written is passed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import Any

from ...types import Json
from .messages import Capabilities, joined_contents

CallsWriter = Callable[[list[tuple[str, Any]]], str]
"""The text of the calls of one message, each with its name and arguments, as the model's parser reads them."""

_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, write the name of the function and an object with its arguments exactly in this form:
{example}

The result of a call follows within <tool_response></tool_response> XML tags."""
_EXAMPLE = [("NAME_OF_FUNCTION", {"NAME_OF_ARGUMENT": "VALUE"})]


def plain_calls(calls: list[tuple[str, Any]]) -> str:
    """Returns calls as JSON objects: a CallsWriter where no parser is known."""
    return "\n".join(json.dumps({"name": name, "arguments": value}, ensure_ascii=False) for name, value in calls)


def with_tool_texts(
    messages: list[Json], tools: list[Json], capabilities: Capabilities, write_calls: CallsWriter
) -> tuple[list[Json], list[Json]]:
    """Returns the messages and tools that the template gets: what it would not show is in the messages as text.

    Args:
        messages: The conversation, prepared for the template.
        tools: The tools that the model may call, in OpenAI's nested form.
        capabilities: What the template was found to read.
        write_calls: How the model writes calls.
    """
    told = bool(tools) and not capabilities.tools
    given = [] if told else tools
    if not capabilities.shows_calls(given):
        messages = _calls_as_text(messages, capabilities, write_calls)
    if told:
        rows = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = _TOOLS.format(tools=rows, example=write_calls(_EXAMPLE))
        messages = _with_system(messages, text, capabilities)
    return messages, given


def _with_system(messages: list[Json], text: str, capabilities: Capabilities) -> list[Json]:
    """Returns the messages with a text behind the first system message, or as one."""
    content = _content(text, capabilities)
    if messages and messages[0].get("role") in ("system", "developer"):
        joined = joined_contents([messages[0].get("content"), content], "\n\n")
        return [{**messages[0], "content": joined}, *messages[1:]]
    return [{"role": "system", "content": content}, *messages]


def _calls_as_text(messages: list[Json], capabilities: Capabilities, write_calls: CallsWriter) -> list[Json]:
    """Returns the messages with calls in the text of the assistant, and results in the text of the user.

    Results in a row are one message. Whether it is joined to what the user says next is for arrange.py.
    """
    if not any(message.get("role") == "tool" or message.get("tool_calls") for message in messages):
        return messages
    found: list[Json] = []
    names: dict[Any, str] = {}
    for are_results, run in groupby(messages, key=_is_result):
        if are_results:
            texts = [_result_as_text(message, names) for message in run]
            found.append({"role": "user", "content": joined_contents(texts, "\n")})
            continue
        for message in run:
            if calls := message.get("tool_calls"):
                written = write_calls([_read(call, names) for call in calls])
                content = joined_contents([message.get("content"), written], "\n")
                message = {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
            found.append(message)
    if not capabilities.strings:
        return [{**m, "content": _content(m["content"], capabilities)} if "content" in m else m for m in found]
    return found


def _is_result(message: Json) -> bool:
    return message.get("role") == "tool" and not message.get("tool_calls")


def _result_as_text(message: Json, names: dict[Any, str]) -> Any:
    """Returns the content of a result between its tags, with the name of its call."""
    name = names.get(message.get("tool_call_id")) or message.get("name")
    start = f'<tool_response name="{name}">\n' if name else "<tool_response>\n"
    return joined_contents([start, message.get("content"), "\n</tool_response>"], "")


def _read(call: Any, names: dict[Any, str]) -> tuple[str, Any]:
    """Returns a call's name, which its id then has in `names`, and its arguments, an object where they are one."""
    function = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    name, arguments = str(function.get("name") or ""), function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # the text stays
            arguments = json.loads(arguments) if arguments.strip() else {}
    if isinstance(call, dict) and isinstance(call.get("id"), str):
        names[call["id"]] = name
    return name, {} if arguments is None else arguments


def _content(content: Any, capabilities: Capabilities) -> Any:
    """Returns a content as the template reads it."""
    return [{"type": "text", "text": content}] if isinstance(content, str) and not capabilities.strings else content
