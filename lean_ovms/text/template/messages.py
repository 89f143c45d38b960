"""Convert a client's messages to the form that a chat template reads.

The fields that are kept follow OVMS; what one template needs beyond that is in its Capabilities. Messages are copied
where they change, never written to. Knows no jinja2.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from ...types import Json

_TEXT_FIELDS = ("tool_call_id", "name", "reasoning_content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a template can read, found by rendering probes.

    parts: the roles whose content it reads as a list of parts. strings: content as a string; if not, every content
    must be parts. null: what stands for no content: "null" (None),
    "missing" or "empty". arguments: the arguments of earlier tool calls as an "object", as a "string" (of JSON; what
    clients send), or "any". thinking: it reads reasoning from a field of that name.
    """

    parts: frozenset[str] = frozenset()
    strings: bool = True
    null: str = "null"
    arguments: str = "any"
    thinking: bool = False


def prepare(messages: list[Json], capabilities: Capabilities) -> list[Json]:
    """Returns the messages for one rendering."""
    return [_message(message, capabilities) for message in messages]


def _message(message: Json, capabilities: Capabilities) -> Json:
    role = message.get("role")
    kept: Json = {"role": role}
    content = _content(message.get("content", ""), role in capabilities.parts, capabilities.strings)
    if content is not None or capabilities.null == "null":
        kept["content"] = content
    elif capabilities.null == "empty":
        kept["content"] = ""
    for name in _TEXT_FIELDS:
        if isinstance(message.get(name), str):
            kept[name] = message[name]
    if isinstance(message.get("reasoning"), str):  # vLLM's newer name
        kept.setdefault("reasoning_content", message["reasoning"])
    if capabilities.thinking and "reasoning_content" in kept:
        kept["thinking"] = kept["reasoning_content"]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        kept["tool_calls"] = [_tool_call(call, capabilities.arguments) for call in calls]
    return kept


def _content(content: Any, parts: bool, strings: bool) -> Any:
    """Returns content as the template reads it: None and [] become None, text a string or parts; other parts stay."""
    if content is None or content == []:
        return None
    if isinstance(content, str):
        return content if strings else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return ""
    if parts or not strings or not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return content
    return "\n".join(dropwhile(lambda text: not text, (str(part.get("text", "")) for part in content)))


def _tool_call(call: Any, form: str) -> Any:
    """Returns a tool call with its arguments in the form that the template reads; unchanged if that is impossible."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if form == "object" and isinstance(arguments, str):
        arguments = _parsed(arguments)
    elif form == "string" and isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}} if "arguments" in function else call


def _parsed(arguments: str) -> Any:
    """Returns the object in JSON text; the text itself if it is none. Some clients send "" for no arguments."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
