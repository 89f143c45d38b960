"""Rearranges a conversation so that a chat template renders all of it.

Templates refuse or drop messages because of their roles and places: a second system message, one after the first turn,
the role developer, two user messages in a row, a tool result without its call. For each sequence of roles a short
example is rendered that has a unique word in each message. If some words are missing, the code looks for changes with
which all are shown. The results are cached by the sequence of roles, and long sequences are shortened by omitting
repeated turns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, groupby
from typing import Any

from ...text.template.chat_template import DEFAULT_RENDER_S, CallsWriter, RenderTemplate, TemplateReader
from ...text.template.messages import Capabilities, prepare, prepare_tools
from ...types import Json
from ...util.concurrency import TooSlowInline
from .template_capabilities import REASONING_NAMES, TOOL, probe, probe_tools, reads_no_tools

Render = Callable[[list[Json], bool, bool], str]
"""Renders messages, given whether there is a tool and add_generation_prompt. It may raise anything."""
Change = Callable[[list[Json]], list[Json]]

ORDERS = 512
"""The number of role sequences cached for one template. A client's next turn adds at most one."""
KINDS = 64
"""Conversations whose sequence of roles is cached by the kinds of their messages: most have two messages."""
MAX_ORDER = 64
"""The most messages in an example, since some templates take quadratic time. The middle of a longer one is omitted."""
MAX_EXACT_ORDER = 1000
"""The most messages in an example of full length, which is rendered if the shortened one did not help."""
_FIRST = ("system", "developer")


EXAMPLE_S = 0.2
"""CPU time of the rendering of an example, which shows how a conversation must be arranged."""


class ProbedTemplate(TemplateReader):
    """A chat template whose abilities are found by rendering examples. Conversations are adapted to them.

    So the template drops no part of a conversation.
    """

    def __init__(self, source: str, render: RenderTemplate, content_format: str, probe_s: float) -> None:
        until = time.thread_time() + probe_s

        def call(messages: list[Json], tools: list[Json], add: bool, kwargs: Json) -> str:
            seconds = min(DEFAULT_RENDER_S, until - time.thread_time())
            return render(messages, tools or self.no_tools, add, kwargs, seconds)

        self.no_tools = None
        if not reads_no_tools(call):
            self.no_tools = []
        self.capabilities = probe(source, call, content_format)
        self.tool_needs = probe_tools(call)
        self._render = render
        self._arranger = Arranger(self._call_example, self.capabilities)

    def _call_example(self, messages: list[Json], tools: bool, add: bool) -> str:
        """Returns the rendering of a short conversation of our own."""
        given = prepare_tools([TOOL], self.tool_needs) if tools else self.no_tools
        return self._render(messages, given, add, {}, EXAMPLE_S)

    def example(self, messages: list[Json]) -> str:
        return self._arranger.example(messages)

    def arrange(
        self, messages: list[Json], tools: list[Json], *, add: bool, write_calls: CallsWriter
    ) -> tuple[list[Json], list[Json]]:
        messages, tools = with_tool_texts(messages, tools, self.capabilities, write_calls)
        return self._arranger.arrange(messages, tools=bool(tools), add=add), tools

    def arrange_exactly(
        self, messages: list[Json], tools: list[Json], *, add: bool, write_calls: CallsWriter
    ) -> list[Json] | None:
        messages, tools = with_tool_texts(messages, tools, self.capabilities, write_calls)
        return self._arranger.arrange_exactly(messages, tools=bool(tools), add=add)


class Arranger:
    """Rearranges the conversations for one template."""

    def __init__(self, render: Render, capabilities: Capabilities) -> None:
        """Creates the arranger of a template; `render` renders short conversations, without media."""
        self._render = render
        self._capabilities = capabilities
        self._changes = lru_cache(ORDERS)(self._find_changes)

    def arrange(self, messages: list[Json], *, tools: bool, add: bool) -> list[Json]:
        """Returns the messages with the changes that the template needs. Raises TooSlowInline.

        Args:
            messages: The conversation as `prepare` returns it.
            tools: Whether the request has tools.
            add: Whether the prompt ends with the header of an answer.
        """
        return self._changed(messages, self._changes(_order(_kinds(messages)), tools, add))

    def arrange_exactly(self, messages: list[Json], *, tools: bool, add: bool) -> list[Json] | None:
        """Returns the rearranged messages, using an example of full length; None if `arrange` has used one already.

        It is for a conversation that the template refuses even after `arrange`. Raises TooSlowInline. The parameters
        are those of `arrange`.
        """
        order = _kinds(messages)
        if len(order) > MAX_EXACT_ORDER or order == _order(order):
            return None
        return self._changed(messages, self._find_changes(order, tools, add))

    def _changed(self, messages: list[Json], changes: Iterable[Change]) -> list[Json]:
        for change in changes:
            messages = change(messages)
        return with_blanks(messages, self._capabilities)

    def example(self, messages: list[Json]) -> str:
        """Renders a short conversation without changes; returns "" if that fails. Raises TooSlowInline."""
        return self._try(prepare(messages, self._capabilities), False, True)

    def _find_changes(self, order: tuple[str, ...], tools: bool, add: bool) -> tuple[Change, ...]:
        """Returns the smallest set of changes with which the most messages of this role sequence are shown.

        Args:
            order: The kinds of the messages.
            tools: Whether the request has tools.
            add: Whether the prompt ends with the header of an answer.
        """
        messages, words = _example(order)
        trial = _Trial(lambda changed: self._try(changed, tools, add), prepare(messages, self._capabilities), words)
        return trial.needed(trial.best())

    def _try(self, messages: list[Json], tools: bool, add: bool) -> str:
        try:
            return self._render(with_blanks(messages, self._capabilities), tools, add)
        except TooSlowInline:
            raise
        except Exception:  # a template is a program, so it can fail in any way
            return ""


class _Trial:
    """Tests changes on one example conversation."""

    def __init__(self, render: Callable[[list[Json]], str], messages: list[Json], words: list[str]) -> None:
        """Creates the trial of an example.

        Args:
            render: Renders the changed messages.
            messages: The messages of the example.
            words: The words that should be in the result.
        """
        self._render = render
        self._messages = messages
        self._words = words
        self._known: list[tuple[list[Json], int]] = []

    def best(self) -> tuple[Change, ...]:
        """Returns the changes with which the most words are shown; none if they show no more words than without."""
        best: tuple[Change, ...] = ()
        most = self._shown(best)
        for candidate in (CHANGES, *((change,) for change in CHANGES)):
            if most == len(self._words):
                break
            if (number := self._shown(candidate)) > most:
                best, most = candidate, number
        return best

    def needed(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Returns those of the changes without which fewer words are shown."""
        most, before = self._shown(changes), len(changes) + 1
        while len(changes) < before:  # a change that was needed may not be after another one is removed
            before = len(changes)
            for change in NEEDLESS_FIRST:
                less = tuple(one for one in changes if one is not change)
                if self._shown(less) == most:
                    changes = less
        return changes

    def _shown(self, changes: tuple[Change, ...]) -> int:
        """Returns how many words are shown with these changes."""
        messages = self._messages
        for change in changes:
            messages = change(messages)
        for known, number in self._known:
            if known == messages:
                return number
        text = self._render(messages)
        self._known.append((messages, sum(word in text for word in self._words)))
        return self._known[-1][1]


# --- orders of roles ------------------------------------------------------------------------------------------------


@lru_cache(KINDS)
def _order(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the kinds of messages without turns, or steps of turns, that repeat earlier ones."""
    order: list[str] = []
    for turn in _different(_pieces(kinds, "user")):
        for step in _different(_pieces(turn, "calls")):
            for kind, run in groupby(step):
                order += [kind] * min(2, len(list(run)))
    if len(order) > MAX_ORDER:
        order[MAX_ORDER // 2 : -MAX_ORDER // 2] = []
    return tuple(order)


def _pieces(kinds: Sequence[str], start: str) -> list[tuple[str, ...]]:
    """Divides the kinds of messages into pieces, each of which, except the first, begins with the kind `start`."""
    pieces: list[list[str]] = [[]]
    for kind in kinds:
        if kind == start and pieces[-1] and pieces[-1][-1] != start:
            pieces.append([])
        pieces[-1].append(kind)
    return list(map(tuple, pieces))


def _different(pieces: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Returns the distinct pieces in their order, and the last piece, which templates treat specially."""
    return [*dict.fromkeys(pieces[:-1]), pieces[-1]]


def _kinds(messages: list[Json]) -> tuple[str, ...]:
    """Returns each message's kind: its role, "calls", or "stray" for a result without a call of its id before it."""
    kinds = []
    ids: set[str] = set()
    for message in messages:
        kind = _kind(message)
        if kind != "tool":
            ids = {str(call.get("id")) for call in message.get("tool_calls") or () if isinstance(call, dict)}
        elif ids and str(message.get("tool_call_id")) not in ids:
            kind = "stray"
        kinds.append(kind)
    return tuple(kinds)


def _kind(message: Json) -> str:
    role = message.get("role")
    return "calls" if role == "assistant" and message.get("tool_calls") else str(role)


def _example(order: tuple[str, ...]) -> tuple[list[Json], list[str]]:
    """Returns an example conversation for a role sequence, and the words that should be in its rendering."""
    messages: list[Json] = []
    words = [f"word{place}probe" for place in range(len(order))]
    calls: list[Json] = []
    answered = 0
    for kind, word in zip(order, words, strict=True):
        message: Json = {"role": kind, "content": word}
        if kind == "calls":
            calls, answered = [_call(word)], 0
            message = {"role": "assistant", "content": "", "tool_calls": calls}
        elif kind == "stray":
            message |= {"role": "tool", "tool_call_id": f"id{word}"}
        elif kind == "tool":
            if calls and answered == len(calls):
                calls.append(_call(f"{word}s"))
            message["tool_call_id"] = calls[answered]["id"] if calls else "nocall001"
            answered += 1
        else:
            calls, answered = [], 0
        messages.append(message)
    return messages, words


def _call(name: str) -> Json:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps({"a": name})}}


# --- changes --------------------------------------------------------------------------------------------------------


def _with_role(message: Json, role: str) -> Json:
    return {"role": role, "content": message.get("content")}


def _names_in_results(messages: list[Json]) -> list[Json]:
    """Adds the name of the called function to each tool result; that of the last call if the id is unknown."""
    names: dict[str, Any] = {}
    last = None
    found = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                names[str(call.get("id"))] = last = call["function"].get("name")
        name = names.get(str(message.get("tool_call_id")), last) if message.get("role") == "tool" else None
        found.append({"name": name, **message} if isinstance(name, str) else message)
    return found


def _developer_as_system(messages: list[Json]) -> list[Json]:
    """Changes developer messages to system messages. OpenAI's newer clients send developer messages."""
    return [_with_role(m, "system") if m["role"] == "developer" else m for m in messages]


def _first_joined(messages: list[Json]) -> list[Json]:
    """Joins the system and developer messages at the beginning into one."""
    number = _number_of_first(messages)
    if number < 2:
        return messages
    first = messages[:number]
    role = "system" if any(message["role"] == "system" for message in first) else "developer"
    return [_joined([_with_role(message, role) for message in first]), *messages[number:]]


def _late_as_user(messages: list[Json]) -> list[Json]:
    """Changes later system and developer messages, which Claude Code and Codex send, to user messages."""
    number = _number_of_first(messages)
    return messages[:number] + _first_as_user(messages[number:])


def _first_as_user(messages: list[Json]) -> list[Json]:
    """Changes all system and developer messages to user messages."""
    return [_with_role(m, "user") if m["role"] in _FIRST else m for m in messages]


def _texts_behind_calls(messages: list[Json]) -> list[Json]:
    """Moves texts before calls into the turn's next text, after the results; Mistral's templates take one only."""
    found: list[Json] = []
    held: list[Json] = []
    following = chain(messages[1:], [{}])
    for message, after, speaks in zip(messages, following, _speaks_later(messages), strict=False):
        if _kind(message) != "assistant":
            found.append(message)
        elif speaks and after.get("tool_calls"):
            held.append(message)
        else:
            found.append(_joined([*held, message]))
            held = []
    return found


def _speaks_later(messages: list[Json]) -> list[bool]:
    """Returns for each message whether a later message in the same turn has a text of the assistant without calls."""
    found = []
    speaks = False
    for message in reversed(messages):
        found.append(speaks)
        speaks = message["role"] != "user" and (speaks or _kind(message) == "assistant")
    return found[::-1]


def _turns_joined(messages: list[Json]) -> list[Json]:
    """Joins consecutive messages of a user, or of the assistant, into one."""
    found: list[Json] = []
    for role, run in groupby(messages, key=lambda message: message["role"]):
        turn = list(run)
        found += [_joined(turn)] if len(turn) > 1 and role in ("user", "assistant") else turn
    return found


def _opened_by_user(messages: list[Json]) -> list[Json]:
    """Inserts an empty user message before the first message if that is the assistant's."""
    number = _number_of_first(messages)
    if number == len(messages) or messages[number]["role"] == "user":
        return messages
    return [*messages[:number], _like(messages[number], "user"), *messages[number:]]


def _calls_closed(messages: list[Json]) -> list[Json]:
    """Inserts an empty answer where a user message follows calls or their results."""
    found: list[Json] = []
    for message in messages:
        last = found[-1] if found else {}
        if message["role"] == "user" and (last.get("role") == "tool" or last.get("tool_calls")):
            found.append(_like(message, "assistant"))
        found.append(message)
    return found


def _strays_as_user(messages: list[Json]) -> list[Json]:
    """Changes results without a call to user messages; a client may have cut off the call."""
    found: list[Json] = []
    called = False
    for message in messages:
        called = bool(message.get("tool_calls")) or (called and message["role"] == "tool")
        found.append(_with_role(message, "user") if message["role"] == "tool" and not called else message)
    return found


def _calls_as_text(messages: list[Json]) -> list[Json]:
    """Changes tool calls to texts of the assistant."""
    return [_call_as_text(m) if m.get("tool_calls") else m for m in messages]


def _results_as_user(messages: list[Json]) -> list[Json]:
    """Changes tool results to user messages."""
    return [_with_role(m, "user") if m["role"] == "tool" else m for m in messages]


def _call_as_text(message: Json) -> Json:
    functions = [call.get("function") if isinstance(call, dict) else call for call in message["tool_calls"]]
    text = {"role": "assistant", "content": "\n".join(json.dumps(one, ensure_ascii=False) for one in functions)}
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return _joined([kept, text])


CHANGES: tuple[Change, ...] = (
    _names_in_results,
    _developer_as_system,
    _first_joined,
    _late_as_user,
    _strays_as_user,
    _results_as_user,
    _calls_as_text,
    _first_as_user,
    _texts_behind_calls,
    _turns_joined,
    _opened_by_user,
    _calls_closed,
)
"""All possible changes, in the order in which they are applied."""
NEEDLESS_FIRST: tuple[Change, ...] = (
    _calls_as_text,
    _results_as_user,
    _strays_as_user,
    _first_as_user,
    _calls_closed,
    _opened_by_user,
    _turns_joined,
    _texts_behind_calls,
    _late_as_user,
    _first_joined,
    _developer_as_system,
    _names_in_results,
)
"""All possible changes, those that alter the conversation most first. These are omitted if others help as well."""


def _number_of_first(messages: list[Json]) -> int:
    """Returns the number of system and developer messages at the beginning."""
    return next((place for place, m in enumerate(messages) if m["role"] not in _FIRST), len(messages))


def _like(message: Json, role: str) -> Json:
    """Returns an empty message with the same form of content as another one."""
    return {"role": role, "content": [{"type": "text", "text": ""}] if isinstance(message.get("content"), list) else ""}


def _joined(messages: list[Json]) -> Json:
    """Joins messages of the same role into one with all calls. An empty line separates consecutive texts."""
    contents = [message.get("content") for message in messages]
    whole: Json = {}
    for message in messages:
        whole |= message
    whole["content"] = joined_contents(contents, "\n\n")
    for name in ("reasoning_content", *REASONING_NAMES):
        if texts := [message[name] for message in messages if message.get(name)]:
            whole[name] = "\n\n".join(texts)
    if calls := [call for message in messages for call in message.get("tool_calls") or ()]:
        whole["tool_calls"] = calls
    return whole


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


def with_tool_texts(
    messages: list[Json], tools: list[Json], capabilities: Capabilities, write_calls: CallsWriter
) -> tuple[list[Json], list[Json]]:
    """Returns the messages and tools to render; tools and calls that the template would not show are written into
    texts.

    Args:
        messages: The conversation, prepared for the template.
        tools: The tools that the model may call, in OpenAI's nested form.
        capabilities: The capabilities of the template.
        write_calls: Writes calls in the model's notation.
    """
    told = bool(tools) and not capabilities.tools
    given = [] if told else tools
    if not capabilities.shows_calls(given):
        messages = _calls_in_texts(messages, capabilities, write_calls)
    if told:
        rows = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = _TOOLS.format(tools=rows, example=write_calls(_EXAMPLE))
        messages = _with_system(messages, text, capabilities)
    return messages, given


def _with_system(messages: list[Json], text: str, capabilities: Capabilities) -> list[Json]:
    """Appends a text to the first system message, or adds a system message with the text."""
    content = _content(text, capabilities)
    if messages and messages[0].get("role") in ("system", "developer"):
        joined = joined_contents([messages[0].get("content"), content], "\n\n")
        return [{**messages[0], "content": joined}, *messages[1:]]
    return [{"role": "system", "content": content}, *messages]


def _calls_in_texts(messages: list[Json], capabilities: Capabilities, write_calls: CallsWriter) -> list[Json]:
    """Writes calls into the texts of the assistant, and results into user messages.

    Consecutive results become one message. Arranger decides whether it is joined with the next user message.
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
    """Returns the content of a tool result between tags, with the name of its call."""
    name = names.get(message.get("tool_call_id")) or message.get("name")
    start = f'<tool_response name="{name}">\n' if name else "<tool_response>\n"
    return joined_contents([start, message.get("content"), "\n</tool_response>"], "")


def _read(call: Any, names: dict[Any, str]) -> tuple[str, Any]:
    """Returns a call's name and arguments, if possible an object; stores the name under the call's id in `names`."""
    function = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    name, arguments = str(function.get("name") or ""), function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # if it cannot be parsed, the text stays
            arguments = json.loads(arguments) if arguments.strip() else {}
    if isinstance(call, dict) and isinstance(call.get("id"), str):
        names[call["id"]] = name
    return name, {} if arguments is None else arguments


def _content(content: Any, capabilities: Capabilities) -> Any:
    """Returns content in the form that the template reads."""
    return [{"type": "text", "text": content}] if isinstance(content, str) and not capabilities.strings else content


def joined_contents(contents: Iterable[Any], between: str) -> Any:
    """Joins contents into one text, or into a list of parts if any has parts; consecutive texts become one part."""
    said = [content for content in contents if content]
    if all(isinstance(content, str) for content in said):
        return between.join(said)
    found: list[Any] = []
    for are_texts, run in groupby(said, key=lambda content: isinstance(content, str)):
        pieces = list(run)
        found += [{"type": "text", "text": between.join(pieces)}] if are_texts else chain.from_iterable(pieces)
    return found


def with_blanks(messages: list[Json], capabilities: Capabilities) -> list[Json]:
    """Replaces the content of messages without text and calls by what the template accepts as an empty text."""
    if not capabilities.blanks:
        return messages
    return [_with_blank(message, capabilities.blanks) for message in messages]


def _with_blank(message: Json, blanks: Mapping[str, Any]) -> Json:
    nothing = message.get("content") in ("", None, [{"type": "text", "text": ""}]) and not message.get("tool_calls")
    return {**message, "content": blanks[message["role"]]} if nothing and message["role"] in blanks else message
