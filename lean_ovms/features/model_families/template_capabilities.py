"""Finds out what a chat template can render, by rendering small examples when it is loaded.

The result is more reliable than reading the template's source, in which macros, filters and renamed variables matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...text.template.messages import NO_PARAMETERS, Capabilities, ToolNeeds
from ...types import Json

Render = Callable[[list[Json], list[Json], bool, Json], str]
"""Renders messages, given tools, add_generation_prompt and template variables. It may raise anything."""

_NEEDLE = "probe9needle"
_NEEDLES = (_NEEDLE, "second9needle")
_PARTS = [{"type": "text", "text": needle} for needle in _NEEDLES]
TOOL: Json = {"type": "function", "function": {"name": "test_tool", "description": "", "parameters": NO_PARAMETERS}}
"""The tool of examples."""
_DUMPED = re.compile(r"""['"]type['"]""")
_MARKED: Json = {
    "type": "function",
    "function": {
        "name": _NEEDLE,
        "description": "Test",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "Test"}}},
    },
}
_FIELDS_OF_ROLES: dict[str, Json] = {"tool": {"tool_call_id": "call00001", "name": "test_tool"}}
_NO_CONTENT: dict[str, Json] = {"null": {"content": None}, "missing": {}, "empty": {"content": ""}}
"""Messages without content, by the value of Capabilities.null."""
_ARGUMENTS: dict[str, object] = {"object": {_NEEDLE: "value"}, "string": json.dumps({_NEEDLE: "value"})}
_NOTHING = ("None", "null", "Undefined")
"""The texts that a template writes for a member that is missing or null."""
REASONING_NAMES = ("thinking", "tool_plan", "reasoning")
"""Further names of the field with a message's reasoning, as in GPT-OSS, Command R7B and Solar Open."""
_MEMBER = r"\.{0}\b|\[['\"]{0}['\"]\]|get\(['\"]{0}['\"]"
"""The pattern of code that reads the member with a name."""


def probe(source: str, render: Render, content_format: str) -> Capabilities:
    """Returns the capabilities of a template, found by rendering short chats.

    Args:
        source: The template.
        render: Renders a chat.
        content_format: The form of content that it reads: "string" or "openai" if it is known, "auto" to find it out.
    """
    if content_format == "auto":
        parts = _is_shown(render, [{"role": "user", "content": _PARTS}])
        strings = not parts or _is_shown(render, [{"role": "user", "content": " ".join(_NEEDLES)}])
    else:
        parts, strings = False, content_format == "string"
    hey: Json = {"role": "user", "content": "Hey" if strings else [{"type": "text", "text": "Hey"}]}
    arguments = _arguments(render, hey) if "tool_calls" in source else "any"
    talk = _Talk(render, hey, [_call(_ARGUMENTS["string" if arguments == "string" else "object"])])
    null = talk.best_null_form()
    system: Json = {**hey, "role": "system"}
    refused = tuple(one for one in NOTATIONS if (one.start in source or one.end in source) and talk.refuses(one))
    return Capabilities(
        parts=talk.roles_with_parts() if parts else frozenset(),
        strings=strings,
        null=null,
        arguments=arguments,
        reasoning_names=tuple(name for name in REASONING_NAMES if re.search(_MEMBER.format(name), source)),
        raw_arguments=talk.shows_raw_arguments(),
        blanks=talk.blanks(),
        short_ids=talk.needs_short_ids(),
        several_calls=talk.shows_several_calls(),
        text_with_calls=talk.shows_text_with_calls(),
        reasoning_with_text=talk.bears_reasoning_with_text(),
        without_markup=partial(taken_apart, notations=refused) if refused else None,
        tools=any(_NEEDLE in _try(render, [*before, hey], [_MARKED]) for before in ([], [system])),
        calls=talk.shows_calls(null, []),
        calls_with_tools=talk.shows_calls(null, [TOOL]),
    )


def _is_shown(render: Render, messages: list[Json]) -> bool:
    """Returns whether all content is rendered as text, and not as the dump of a list."""
    text = _try(render, messages)
    return all(needle in text and not _DUMPED.search(text.partition(needle)[0][-40:]) for needle in _NEEDLES)


def _arguments(render: Render, hey: Json) -> str:
    """Returns the form that the arguments of earlier calls must have; "any" if both forms are rendered alike.

    A template that reads both is given objects, as transformers passes them: some render a text as it is, but an object
    in the model's notation. Python's notation of an object shows that the template expects a text. Some templates write
    calls only if there are tools (Falcon 3).
    """
    for tools in ([], [TOOL]):
        texts = {
            form: _try(render, [hey, {"role": "assistant", "content": "", "tool_calls": [_call(arguments)]}], tools)
            for form, arguments in _ARGUMENTS.items()
        }
        understood = [
            form for form, text in texts.items() if _NEEDLE in text and repr(_ARGUMENTS["object"]) not in text
        ]
        if understood and len({*texts.values()}) > 1:
            return understood[0]
    return "any"


class _Talk:
    """Tests how a template renders short conversations with calls and answers."""

    def __init__(self, render: Render, hey: Json, calls: list[Json]) -> None:
        """Prepares a conversation.

        Args:
            render: Renders a conversation.
            hey: The user message that it begins with.
            calls: A call in the form that the template reads.
        """
        self._render, self._hey, self._calls = render, hey, calls
        self._parts = isinstance(hey["content"], list)
        self._tools = next((tools for tools in ([], [TOOL]) if self._text(calls, tools=tools)), [])
        asked: Json = {"role": "assistant", "content": "", "tool_calls": calls}
        self._around: dict[str, tuple[list[Json], list[Json]]] = {
            "system": ([], [hey]),
            "developer": ([], [hey]),
            "user": ([], []),
            "assistant": ([hey], [hey]),
            "tool": ([hey, asked], []),
        }  # for each role the messages before and after a message of that role

    def _text(self, calls: list[Json], content: str = "", *, tools: list[Json] | None = None, **more: object) -> str:
        """Renders a conversation with a message with these calls, and with their results.

        Args:
            calls: The calls.
            content: The text beside the calls.
            tools: The tools of the prompt.
            **more: Further members of the message.
        """
        results = [
            {
                "role": "tool",
                "content": self._content("15"),
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
            }
            for call in calls
        ]
        asked = {"role": "assistant", "content": self._content(content), "tool_calls": calls, **more}
        return _try(self._render, [self._hey, asked, *results], self._tools if tools is None else tools)

    def _content(self, text: str) -> object:
        return [{"type": "text", "text": text}] if self._parts else text

    def _with(self, role: str, content: object) -> list[Json]:
        """Returns a conversation with a message of this role."""
        before, after = self._around[role]
        return [*before, {"role": role, "content": content, **_FIELDS_OF_ROLES.get(role, {})}, *after]

    def roles_with_parts(self) -> frozenset[str]:
        """Returns the roles whose content may be parts; some templates read parts only in user messages (Devstral)."""
        return frozenset(role for role in self._around if _is_shown(self._render, self._with(role, _PARTS)))

    def _bears(self, role: str, content: object) -> bool:
        """Returns whether the template accepts a message of this role with this content."""
        return bool(_try(self._render, self._with(role, content)))

    def blanks(self) -> dict[str, object]:
        """Returns the contents that stand for an empty text, by the roles for which the template needs a text."""
        found: dict[str, object] = {}
        for role in self._around:
            none, blank, text = map(self._content, ("", " ", "."))
            if not self._bears(role, none) and self._bears(role, text):
                empty = [{"type": "text", "text": ""}]
                found[role] = next(form for form in (empty, blank, text) if self._bears(role, form))
        return found

    def best_null_form(self) -> str:
        """Returns the form of missing content in a message with calls that the template renders best.

        Of equally good ones the first is used: null, as OVMS sends it; a missing key, as transformers from 5.20 on; an
        empty string. A template may fail only later in a conversation (QwQ).
        """

        def score(form: str) -> int:
            result: Json = {"role": "tool", "content": "15", **_FIELDS_OF_ROLES["tool"]}
            talk = [self._hey, self._asked(form), result, {"role": "assistant", "content": "Ho"}, self._hey]
            texts = [_try(self._render, talk[:end]) for end in (2, 3, 5)]
            return sum(bool(text) and "None" not in text.partition("Hey")[2] for text in texts)

        return max(_NO_CONTENT, key=score)

    def _asked(self, null: str) -> Json:
        """Returns a message with calls and this form of missing content."""
        return {"role": "assistant", **_NO_CONTENT[null], "tool_calls": self._calls}

    def shows_calls(self, null: str, tools: list[Json]) -> bool:
        """Returns whether a call and its result are rendered, given the form of missing content and the tools."""
        content = _PARTS[1:] if self._parts else _NEEDLES[1]
        result: Json = {"role": "tool", "content": content, **_FIELDS_OF_ROLES["tool"]}
        text = _try(self._render, [self._hey, self._asked(null), result], tools)
        return all(needle in text for needle in _NEEDLES)

    def shows_raw_arguments(self) -> bool:
        """Returns whether arguments that are not an object are rendered completely."""
        raw = (f'{{"a": "{_NEEDLE}', f'["{_NEEDLE}"]', f'"{_NEEDLE}"', _NEEDLE)
        return all(_NEEDLE in self._text([_call(text)]) for text in raw)

    def needs_short_ids(self) -> bool:
        """Returns whether the template refuses ids that do not have nine letters and digits."""
        if not self._text(self._calls):
            return False
        return not all(self._text([{**self._calls[0], "id": given}]) for given in ("c1", "call_0123456789abcdef-0123"))

    def shows_several_calls(self) -> bool:
        """Returns whether the template renders two calls of one message; also True if it renders no call at all."""
        names = "first9probe", "second9probe"
        first, second = [
            {**self._calls[0], "id": f"call0000{i}", "function": {**self._calls[0]["function"], "name": name}}
            for i, name in enumerate(names)
        ]
        if names[0] not in self._text([first]):
            return True
        text = self._text([first, second])
        return all(name in text for name in names)

    def shows_text_with_calls(self) -> bool:
        """Returns whether the template renders both a text and its calls, or no calls without a text."""
        name = self._calls[0]["function"]["name"]
        text = self._text(self._calls, _NEEDLES[1])
        return name not in self._text(self._calls) or (name in text and _NEEDLES[1] in text)

    def bears_reasoning_with_text(self) -> bool:
        """Returns whether the template accepts a message with calls, text and reasoning."""
        reasoning = dict.fromkeys(("reasoning_content", *REASONING_NAMES), "because")
        both = self._text(self._calls, "so", tools=None, **reasoning)
        return bool(both) or not self._text(self._calls, "so")

    def refuses(self, notation: ReasoningMarks) -> bool:
        """Returns whether the template refuses a notation of reasoning in an earlier answer's text or reasoning."""
        answer = f"{notation.start}why{notation.end}so"
        if notation is HARMONY:
            answer = f"{notation.start}why{notation.end}<|start|>assistant<|channel|>final<|message|>so"
        plain, marked = (
            _try(self._render, [self._hey, {"role": "assistant", "content": self._content(text)}, self._hey])
            for text in ("so", answer)
        )
        return bool(plain) and not marked


def reads_no_tools(render: Render) -> bool:
    """Returns whether the template can be rendered with None instead of tools, as transformers does."""
    return bool(_try(render, [{"role": "user", "content": "Hey"}]))


def probe_tools(render: Render) -> ToolNeeds:
    """Returns what the template needs in the definitions of tools."""
    hey: list[Json] = [{"role": "user", "content": "Hey"}]

    def text(members: Json) -> str:
        return _try(render, hey, [{"type": "function", "function": {"name": _NEEDLE, **members}}])

    def fails(members: Json) -> bool:
        found = text(members)
        return not found or any(found.count(word) > whole.count(word) for word in _NOTHING)

    def of(schema: Json) -> Json:
        return {"description": "", "parameters": {"type": "object", "properties": {"a": schema}}}

    whole = text(of({"type": "string", "description": ""}))
    if not whole:
        return ToolNeeds()
    less: list[Json] = [{"description": ""}]
    less += [{"description": "", "parameters": one} for one in ({}, {"type": "object"})]
    needed: Json = {"description": ""} if fails({"parameters": NO_PARAMETERS}) else {}
    if any(fails(members) for members in less):
        needed["parameters"] = NO_PARAMETERS
    properties = {
        name: value
        for name, value, schema in (("description", "", {"type": "string"}), ("type", "any", {"description": ""}))
        if fails(of(schema))
    }
    texts = not text(of({"type": "integer", "description": "", "enum": [1], "default": 1}))
    return ToolNeeds(members=needed, properties=properties, default_texts=texts)


def _call(arguments: object) -> Json:
    return {"id": "call00001", "type": "function", "function": {"name": "test_tool", "arguments": arguments}}


def _try(render: Render, messages: list[Json], tools: list[Json] | None = None) -> str:
    """Renders an example; returns "" if the template raises an exception."""
    try:
        return render(messages, tools or [], False, {})
    except Exception:  # a template is a program, so it can fail in any way
        return ""


# --- reasoning in the text of earlier answers
#
# Clients send back what another server, or this one without its parsers, has left in the content. A template that
# renders such a text gets it unchanged; if it refuses the tags, they are removed.


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The tags around reasoning in the text of an answer."""

    start: str
    """The tag before the reasoning."""
    end: str
    """The tag after the reasoning."""


HARMONY = ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>")
"""The marks of gpt-oss. Every text there has a channel, so the tags of the answer are removed, too."""
NOTATIONS = (
    HARMONY,
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<mm:think>", "</mm:think>"),
    ReasoningMarks("<longcat_think>", "</longcat_think>"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<|channel>thought\n", "<channel|>"),
)
_HEADER = re.compile(r"<\|channel\|>(?P<channel>\w+)(?P<more>[^<>]*)(?:<\|constrain\|>[^<>]*)?<\|message\|>")
_BETWEEN = re.compile(r"(?:<\|(?:end|return|call)\|>\s*)?(?:<\|start\|>[^<>]*)?$")


def taken_apart(message: Json, notations: tuple[ReasoningMarks, ...]) -> Json:
    """Returns an assistant's message whose reasoning is in `reasoning_content`, without tags, not in the content."""
    content, thought = message.get("content"), message.get("reasoning_content")
    reasoning: list[str] = []
    if isinstance(thought, str):
        inner, rest = _taken(thought, notations)
        reasoning += [*inner, rest]
    if isinstance(content, str):
        found, content = _taken(content, notations)
        reasoning += found
    elif isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                found, text = _taken(part["text"], notations)
                reasoning += found
                part = {**part, "text": text}
            parts.append(part)
        content = parts
    kept = {**message, "content": content} if "content" in message else message
    thought = "\n\n".join(filter(None, reasoning))
    return {**kept, "reasoning_content": thought} if thought else kept


def _taken(text: str, notations: tuple[ReasoningMarks, ...]) -> tuple[list[str], str]:
    """Returns the reasoning in a text, and the text without it."""
    reasoning: list[str] = []
    for notation in notations:
        found, text = _split(text, notation)
        reasoning += [found] if found else []
    return reasoning, text


def _split(text: str, notation: ReasoningMarks) -> tuple[str, str]:
    """Divides a text into reasoning and answer.

    A start tag without an end begins reasoning up to the end. An end tag before any start ends reasoning from the
    beginning, since templates write the start tag into the prompt.
    """
    if notation is HARMONY:
        return _channels(text)
    pieces = re.split(f"({re.escape(notation.start)}|{re.escape(notation.end)})", text)  # tags are at odd places
    if len(pieces) == 1:
        return "", text
    tag_before = [notation.start if pieces[1] == notation.end else notation.end, *pieces[1::2]]
    thoughts, answers = list[str](), list[str]()
    for tag, piece in zip(tag_before, pieces[::2], strict=True):
        (thoughts if tag == notation.start else answers).append(piece)
    return "\n\n".join(filter(None, map(str.strip, thoughts))), "".join(answers).strip()


def _channels(text: str) -> tuple[str, str]:
    """Returns the texts of the analysis channel, and all others; calls keep the name of their function."""
    headers = list(_HEADER.finditer(text))
    if not headers:
        return "", text
    thoughts, answers = [], [_BETWEEN.sub("", text[: headers[0].start()]).strip()]
    for place, header in enumerate(headers):
        end = headers[place + 1].start() if place + 1 < len(headers) else len(text)
        body = _BETWEEN.sub("", text[header.end() : end]).strip()
        if header["channel"] == "analysis":
            thoughts.append(body)
        else:
            answers.append(" ".join(filter(None, (header["more"].strip(), body))))
    return "\n\n".join(filter(None, thoughts)), "\n\n".join(filter(None, answers))
