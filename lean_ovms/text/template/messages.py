"""Convert a client's messages to the form that a chat template reads.

The fields that are kept follow OVMS; what one template needs beyond that is in its Capabilities. Messages are copied
where they change, never written to. Knows no jinja2.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, dropwhile, groupby
from typing import Any

from ...types import Json
from .call_ids import with_ids, with_short_ids
from .markup import ReasoningMarks, taken_apart

_TEXT_FIELDS = ("tool_call_id", "name", "reasoning_content")
WRAPPER = "arguments"
"""The name under which a template that needs an object gets arguments that are none."""
_NESTED = 3
"""How often an object of arguments may have been written as a JSON text in a JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a template can read, found by rendering probes.

    parts: the roles whose content it reads as a list of parts. strings: content as a string; if not, every content
    must be parts. null: what stands for no content beside calls: "null" (None),
    "missing" or "empty". arguments: the arguments of earlier tool calls as an "object", as a "string" (of JSON; what
    clients send), or "any". thinking: it reads reasoning from a field of that name.
    """

    parts: frozenset[str] = frozenset()
    strings: bool = True
    null: str = "null"
    arguments: str = "any"
    thinking: bool = False
    raw_arguments: bool = True
    """Arguments that are no object are shown as they are; if not, they must be put into one."""
    short_ids: bool = False
    """Ids of calls must be nine letters and digits, as Mistral's are."""
    several_calls: bool = True
    """All calls of one message are shown."""
    text_with_calls: bool = True
    """The text beside calls and the calls are both shown."""
    reasoning_with_text: bool = True
    """A message with calls may have reasoning and a text."""
    blanks: Mapping[str, Any] = field(default_factory=dict)
    """What stands for an empty text in messages of roles in which the template refuses that."""
    markup: tuple[ReasoningMarks, ...] = ()
    """Notations of reasoning that it refuses in the text of an earlier answer."""
    tools: bool = True
    """Tools are shown."""
    calls: bool = True
    """Earlier calls and their results are shown in a prompt without tools."""
    calls_with_tools: bool = True
    """The same in a prompt with tools."""

    def shows_calls(self, tools: list[Json]) -> bool:
        """Whether earlier calls and their results are shown in a prompt with these tools."""
        return self.calls_with_tools if tools else self.calls


def prepare(messages: list[Json], capabilities: Capabilities) -> list[Json]:
    """Returns the messages for one rendering."""
    messages = with_ids(messages)
    if capabilities.short_ids:
        messages = with_short_ids(messages)
    prepared = [_message(message, capabilities) for message in messages]
    if not capabilities.text_with_calls:
        prepared = [part for message in prepared for part in _text_apart(message)]
    return prepared if capabilities.several_calls else _one_call_each(prepared)


def joined_contents(contents: Iterable[Any], between: str) -> Any:
    """Returns contents as one: a text, or parts if one of them has parts; texts in a row are one part then."""
    said = [content for content in contents if content]
    if all(isinstance(content, str) for content in said):
        return between.join(said)
    found: list[Any] = []
    for are_texts, run in groupby(said, key=lambda content: isinstance(content, str)):
        pieces = list(run)
        found += [{"type": "text", "text": between.join(pieces)}] if are_texts else chain.from_iterable(pieces)
    return found


def with_blanks(messages: list[Json], capabilities: Capabilities) -> list[Json]:
    """Returns the messages, those without a text and calls with what the template takes for an empty text."""
    if not capabilities.blanks:
        return messages
    return [_with_blank(message, capabilities.blanks) for message in messages]


def _with_blank(message: Json, blanks: Mapping[str, Any]) -> Json:
    nothing = message.get("content") in ("", None, [{"type": "text", "text": ""}]) and not message.get("tool_calls")
    return {**message, "content": blanks[message["role"]]} if nothing and message["role"] in blanks else message


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
    if capabilities.markup and role == "assistant":
        kept = taken_apart(kept, capabilities.markup)
    if calls is not None:
        kept["tool_calls"] = [_tool_call(call, capabilities) for call in calls]
        if not capabilities.reasoning_with_text:
            kept = _reasoning_in_text(kept)
    if capabilities.thinking and "reasoning_content" in kept:
        kept["thinking"] = kept["reasoning_content"]
    return kept


def _said(message: Json) -> Any:
    """Returns the content, or the refusal that OpenAI's clients send back in a field of its own instead of it."""
    content, refusal = message.get("content", ""), message.get("refusal")
    return refusal if not content and isinstance(refusal, str) else content


def _content(content: Any, parts: bool, strings: bool) -> Any:
    """Returns content as the template reads it: None and [] become None, text a string or parts; other parts stay."""
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
    """Returns a part, a refusal as the text that it is: no template knows that type."""
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
    """Returns the arguments of a call. None and blanks are no arguments; what is no object stays the text that it is,
    or is put into an object."""
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
    """Returns the object that arguments stand for; None if there is none.

    Some clients send null, "" or "null" for no arguments, and some write the text of an object as a JSON text again.
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
    """Returns a message with calls and a text as two: the text, and the calls."""
    if not message.get("tool_calls") or not message.get("content"):
        return [message]
    text = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = {name: value for name, value in message.items() if name in ("role", "name", "tool_calls")}
    return [text, calls | {"content": "" if isinstance(message["content"], str) else [{"type": "text", "text": ""}]}]


def _one_call_each(messages: list[Json]) -> list[Json]:
    """Returns the messages with one call in each, followed by the results that name it."""
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
    """Returns a message with calls, its reasoning in front of its text."""
    content = message.get("content")
    if not isinstance(content, str) or not content or not message.get("reasoning_content"):
        return message
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    return kept | {"content": f"{message['reasoning_content']}\n\n{content}"}
