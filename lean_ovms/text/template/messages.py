"""Converts a client's messages to the form that a chat template reads.

The fields that are kept are those of OVMS; Capabilities describe what else a template needs. Changed messages are
copies.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any

from ...types import SCHEMA_LITERALS, SCHEMA_MAPS, Json

_TEXT_FIELDS = ("tool_call_id", "name", "reasoning_content")
WRAPPER = "arguments"
"""The key under which a template that needs an object gets arguments that are not an object."""
_NESTED = 3
"""The number of times that arguments may have been encoded as JSON inside a JSON string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of a chat template, found by probing."""

    parts: frozenset[str] = frozenset()
    """The roles for which it reads content as a list of parts."""
    strings: bool = True
    """Whether it reads content as a string. If not, all content must be parts."""
    null: str = "null"
    """The form of missing content in a message with calls: "null" (None), "missing" or "empty"."""
    arguments: str = "any"
    """The form of the arguments of earlier calls: "object", "string" (JSON, as clients send it), or "any"."""
    reasoning_names: tuple[str, ...] = ()
    """The names of fields from which it reads reasoning, besides reasoning_content."""
    raw_arguments: bool = True
    """Whether arguments that are not an object are rendered unchanged. If not, they must be wrapped in an object."""
    short_ids: bool = False
    """Whether the ids of calls must have nine letters and digits, as Mistral's have."""
    several_calls: bool = True
    """Whether all calls of a message are rendered."""
    text_with_calls: bool = True
    """Whether both the text and the calls of a message are rendered."""
    reasoning_with_text: bool = True
    """Whether a message with calls may have both reasoning and text."""
    blanks: Mapping[str, Any] = field(default_factory=dict)
    """The replacements of an empty text in messages of those roles for which the template refuses it."""
    without_markup: Callable[[Json], Json] | None = None
    """Takes the notations of reasoning that it refuses out of an earlier answer; None if it refuses none."""
    tools: bool = True
    """Whether tools are rendered."""
    calls: bool = True
    """Whether earlier calls and their results are rendered in a prompt without tools."""
    calls_with_tools: bool = True
    """Whether earlier calls and their results are rendered in a prompt with tools."""

    def shows_calls(self, tools: list[Json]) -> bool:
        """Returns whether earlier calls and their results are rendered in a prompt with these tools."""
        return self.calls_with_tools if tools else self.calls


def prepare(messages: list[Json], capabilities: Capabilities) -> list[Json]:
    """Returns the messages in the form that the template reads."""
    messages = with_ids(messages)
    if capabilities.short_ids:
        messages = with_short_ids(messages)
    prepared = [_message(message, capabilities) for message in messages]
    if not capabilities.text_with_calls:
        prepared = [part for message in prepared for part in _text_apart(message)]
    return prepared if capabilities.several_calls else _one_call_each(prepared)


def _message(message: Json, capabilities: Capabilities) -> Json:
    role, calls = message.get("role"), message.get("tool_calls")
    calls = calls if isinstance(calls, list) and calls else None
    kept: Json = {"role": role}
    content = _content(_said(message), role in capabilities.parts, capabilities.strings)
    if content is None and (calls is None or not capabilities.strings or capabilities.null == "empty"):
        content = "" if capabilities.strings else [{"type": "text", "text": ""}]
    if content is not None or capabilities.null == "null":
        kept["content"] = content
    for name in _TEXT_FIELDS:
        if isinstance(message.get(name), str):
            kept[name] = message[name]
    if isinstance(message.get("reasoning"), str):  # vLLM's newer name
        kept.setdefault("reasoning_content", message["reasoning"])
    if capabilities.without_markup is not None and role == "assistant":
        kept = capabilities.without_markup(kept)
    if calls is not None:
        kept["tool_calls"] = [_tool_call(call, capabilities) for call in calls]
        if not capabilities.reasoning_with_text:
            kept = _reasoning_in_text(kept)
    if "reasoning_content" in kept:
        kept |= dict.fromkeys(capabilities.reasoning_names, kept["reasoning_content"])
    return kept


def _said(message: Json) -> Any:
    """Returns the content of a message, or the refusal that OpenAI's clients send back in another field instead."""
    content, refusal = message.get("content", ""), message.get("refusal")
    return refusal if not content and isinstance(refusal, str) else content


def _content(content: Any, parts: bool, strings: bool) -> Any:
    """Returns content as the template reads it: None for nothing, a string or parts for text, other parts as they are.

    Args:
        content: The content.
        parts: Whether the template reads a list of parts for this role.
        strings: Whether the template reads strings.
    """
    if content is None or content == []:
        return None
    if isinstance(content, str):
        return content if strings else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return ""
    content = [_without_refusal(part) for part in content]
    if parts or not strings or not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return content
    return "\n".join(dropwhile(lambda text: not text, (str(part.get("text", "")) for part in content)))


def _without_refusal(part: Any) -> Any:
    """Returns a part; a refusal becomes a text, since no template knows that type."""
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "text", "text": str(part.get("refusal") or "")}
    return part


def _tool_call(call: Any, capabilities: Capabilities) -> Any:
    """Returns a tool call with its arguments in the form that the template reads; unchanged if that is impossible."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = _arguments(function.get("arguments"), capabilities)
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(given: Any, capabilities: Capabilities) -> Any:
    """Returns the arguments of a call in the form that the template reads.

    None and blanks mean no arguments. Arguments that are not an object remain a text, or are wrapped in an object.
    """
    found, form = _parsed(given), capabilities.arguments
    if found is None:
        raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        if capabilities.raw_arguments:
            return raw
        given = found = {WRAPPER: raw}
    spelled = isinstance(given, dict) or (isinstance(given, str) and given.lstrip().startswith("{"))
    if form == "any" or (form == "string" and isinstance(given, str)):
        found = given if spelled else found
    return json.dumps(found, ensure_ascii=False) if form == "string" and isinstance(found, dict) else found


def _parsed(arguments: Any) -> Json | None:
    """Returns the object that the arguments represent; None if there is none.

    Some clients send null, "" or "null" for no arguments, and some encode the JSON text of an object as a string again.
    """
    for _ in range(_NESTED):
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            return {}
        if not isinstance(arguments, str):
            break
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            break
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else None


# --- messages that a template would show in part --------------------------------------------------------------------


def _text_apart(message: Json) -> list[Json]:
    """Splits a message with calls and a text into two messages: the text, and the calls."""
    if not message.get("tool_calls") or not message.get("content"):
        return [message]
    text = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = {name: value for name, value in message.items() if name in ("role", "name", "tool_calls")}
    return [text, calls | {"content": "" if isinstance(message["content"], str) else [{"type": "text", "text": ""}]}]


def _one_call_each(messages: list[Json]) -> list[Json]:
    """Splits messages so that each has one call, followed by the results for it."""
    found: list[Json] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            found.append(message)
            continue
        results: dict[int, Json] = {}
        own: defaultdict[str, list[int]] = defaultdict(list)
        while place < len(messages) and messages[place].get("role") == "tool":
            results[place] = messages[place]
            own[str(messages[place].get("tool_call_id"))].append(place)
            place += 1
        for number, call in enumerate(calls):
            head = message if number == 0 else {"role": message["role"], "content": ""}
            answers = [results.pop(one) for one in own.pop(str((call or {}).get("id")), ())]
            found += [head | {"tool_calls": [call]}, *answers]
        found += results.values()
    return found


def _reasoning_in_text(message: Json) -> Json:
    """Returns a message with calls in which the reasoning is at the beginning of the text."""
    content = message.get("content")
    if not isinstance(content, str) or not content or not message.get("reasoning_content"):
        return message
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    return kept | {"content": f"{message['reasoning_content']}\n\n{content}"}


_FITS = re.compile(r"[0-9A-Za-z]{9}", re.ASCII)
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def with_ids(messages: list[Json]) -> list[Json]:
    """Gives every call an id that is a text, and every result the id of its call.

    A call without an id gets one made of its position, and one without a type becomes a function call. A result that
    names no call before it is assigned to the first call without a result that has the same name, if the result has
    one. If there is no such call, its id is unchanged.
    """
    if not any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
        return messages
    found: list[Json] = []
    number = 0
    calls = _Calls([], set())
    for place, message in enumerate(messages):
        given = message.get("tool_calls")
        if isinstance(given, list) and given:
            message = {**message, "tool_calls": [_with_id(call, number + i) for i, call in enumerate(given, 1)]}
            number += len(given)
            named = {_text(result.get("tool_call_id")) for result in _results(messages, place + 1)}
            calls = _Calls([call for call in map(_called, message["tool_calls"]) if call[0]], named)
        elif message.get("role") == "tool":
            message = _answering(message, calls)
        else:
            calls = _Calls([], set())
        found.append(message)
    return found


class _Calls:
    """The calls of one message, with their ids and names."""

    def __init__(self, calls: list[tuple[str, Any]], named: set[str]) -> None:
        """Prepares the calls, by id and name, for the results after the message, which name these ids."""
        self._ids = {call_id for call_id, _ in calls}
        self._last = calls[-1][0] if calls else ""
        self._waiting: deque[str] = deque()
        self._of_name: defaultdict[str, deque[str]] = defaultdict(deque)
        self._answered = named
        for call_id, name in calls:
            self._waiting.append(call_id)
            self._of_name[_text(name)].append(call_id)

    def answered_by(self, given: str, name: Any) -> str:
        """Returns the id of the call that a result answers, and marks it; the result's own id if there is none."""
        if not self._ids or given in self._ids:
            return given
        found = (name and self._first(self._of_name[_text(name)])) or self._first(self._waiting) or given or self._last
        self._answered.add(found)
        return found

    def _first(self, waiting: deque[str]) -> str:
        """Returns the first id that no result names, and removes those before it."""
        while waiting and waiting[0] in self._answered:
            waiting.popleft()
        return waiting[0] if waiting else ""


def _with_id(call: Any, number: int) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    return {"type": "function", **call, "id": _text(call.get("id")) or f"call_{number}"}


def _answering(result: Json, calls: _Calls) -> Json:
    """Returns a result with the id of the call that it answers."""
    given = calls.answered_by(_text(result.get("tool_call_id")), result.get("name"))
    return {**result, "tool_call_id": given} if given and given != result.get("tool_call_id") else result


def _results(messages: list[Json], place: int) -> Iterator[Json]:
    """Yields the consecutive results that begin at an index."""
    while place < len(messages) and messages[place].get("role") == "tool":
        yield messages[place]
        place += 1


def _called(call: Any) -> tuple[str, Any]:
    """Returns the id and the name of a call."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return "", None
    return call["id"], call["function"].get("name")


def _text(given: Any) -> str:
    """Returns an id as a text, since some servers use numbers."""
    return "" if given is None else str(given)


def with_short_ids(messages: list[Json]) -> list[Json]:
    """Replaces ids by ones with nine letters and digits, which differ for different ids."""
    taken = {given for given in _given(messages) if _FITS.fullmatch(given)}
    known: dict[str, str] = {}

    def short(given: str) -> str:
        if _FITS.fullmatch(given):
            return given
        if given not in known:
            known[given] = next(one for one in _derived(given) if one not in taken)
            taken.add(known[given])
        return known[given]

    return [_renamed(message, short) for message in messages]


def _given(messages: list[Json]) -> Iterator[str]:
    for message in messages:
        yield _text(message.get("tool_call_id"))
        for call in message.get("tool_calls") or ():
            yield _called(call)[0]


def _renamed(message: Json, rename: Callable[[str], str]) -> Json:
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**c, "id": rename(c["id"])} if _called(c)[0] else c for c in calls]}
    if message.get("role") == "tool":
        return {**message, "tool_call_id": rename(_text(message.get("tool_call_id")))}
    return message


def _derived(given: str) -> Iterator[str]:
    """Yields candidates for the short form of an id, the preferred one first."""
    attempt = 0
    while True:
        digest = hashlib.sha256(f"{attempt}:{given}".encode("utf-8", "surrogatepass")).digest()
        yield "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:9])
        attempt += 1


NO_PARAMETERS: Json = {"type": "object", "properties": {}}
_NULLABLE = ("default", "const")
"""The keywords of JSON Schema whose value may be null."""
_MAPS = (*SCHEMA_MAPS, "dependentSchemas")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolNeeds:
    """The requirements of a chat template for the definitions of tools, found by probing."""

    members: Json = field(default_factory=dict)
    """The members to add to each function, and to its parameters, if they are missing."""
    properties: Json = field(default_factory=dict)
    """The members to add to each parameter's schema."""
    default_texts: bool = False
    """Whether default values must be texts."""


def prepare_tools(tools: list[Json], needs: ToolNeeds) -> list[Json]:
    """Returns OpenAI's tools in the form that the template reads. Members that are null are removed."""
    return [_tool(tool, needs) for tool in tools]


def _tool(tool: Any, needs: ToolNeeds) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    given = {name: value for name, value in function.items() if value is not None}
    if "parameters" in given:
        given["parameters"] = _schema(given["parameters"], needs)
    for name, value in needs.members.items():
        given[name] = {**value, **given[name]} if isinstance(given.get(name), dict) else given.get(name, value)
    return {**tool, "function": given}


def _schema(schema: Any, needs: ToolNeeds) -> Any:
    """Returns a schema without members that are null, which templates would write as `None`."""
    if isinstance(schema, list):
        return [_schema(one, needs) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: Json = {}
    for name, value in schema.items():
        if value is None and name not in _NULLABLE:
            continue
        if name in SCHEMA_LITERALS:
            found[name] = _as_text(value) if needs.default_texts and name == "default" else value
        elif name in _MAPS and isinstance(value, dict):
            found[name] = {key: _schema(inner, needs) for key, inner in value.items()}
        else:
            found[name] = _schema(value, needs)
    if needs.properties and isinstance(found.get("properties"), dict):
        filled = {
            key: {**needs.properties, **one} if isinstance(one, dict) else one
            for key, one in found["properties"].items()
        }
        found["properties"] = filled
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
