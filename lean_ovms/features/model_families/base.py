"""The base class of a family's syntax, and the parser that runs syntaxes: text in, events out.

A `Syntax` knows the tags of a family's calls or reasoning, and reads the text after a tag. `CombinedParser` runs at
most one syntax for calls and one for reasoning over one scanner, so that a reasoning tag inside a call's arguments is
part of the arguments. It is the AnswerParser that the rest of the server uses. A `ModelFamily` names the syntaxes of
one family. A parser never raises an error on a model's output.
"""

from __future__ import annotations

import inspect
import secrets
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from ...types import Event, Json, Reasoning, Text, ToolCallDelta, ToolCallStart
from .scanner import MAX_NAME, Scanner, Steps, Tags

if TYPE_CHECKING:
    from ...grammar.call_syntax import CallForm, OutputForm, ReasoningForm

_Kind = type[Text] | type[Reasoning] | type[ToolCallDelta]
FENCE = "```"
"""The beginning and end of a code block in Markdown."""
_QUOTES = ("`", '"', "'")
"""The quotes that show, before a reasoning tag, that the text is about the tag."""

_ALPHABET = string.ascii_letters + string.digits


_S = TypeVar("_S", bound="Syntax")


class Syntax:
    """The syntax in which one family writes calls or reasoning."""

    tags: tuple[str, ...] = ()
    """The tags to look for; `read` is called after each."""
    noise: tuple[str, ...] = ()
    """Markup without a meaning, which is removed from content."""
    inside: tuple[str, ...] = ()
    """Further markup, which is only read within calls. The text contains a special token if it is part of markup."""
    at_start: ClassVar[bool] = False
    """Whether `start` is called where an answer may begin."""
    start_tag: ClassVar[str] = ""
    """For reasoning, the end of a prompt that leaves reasoning open."""
    answer_header: ClassVar[str] = ""
    """The text that the family writes before the content of an answer."""
    between_tags: ClassVar[bool] = False
    """Whether its reasoning is between tags that are not shown in the answer."""

    def __init__(self, out: CombinedParser, *, tools: bool = False, thinking: bool = False) -> None:
        """Makes a reader for one choice. If calls and reasoning of a format cannot be separated, one reader reads both.

        Args:
            out: The parser to which events are passed.
            tools: Whether calls are read.
            thinking: Whether reasoning is read.
        """
        self.out = out
        self.scanner = out.scanner
        self.tools = tools
        self.thinking = thinking
        self.prepare()

    def prepare(self) -> None:
        """Sets the attributes of an instance that depend on the tools or the prompt, such as tags."""

    @classmethod
    def variant(cls: type[_S], **attributes: object) -> type[_S]:
        """Makes a subclass with other class attributes, for another family whose syntax has the same shape.

        Raises TypeError for an attribute that the class does not declare, or whose default has another type.
        """
        declared = {name for base in cls.__mro__ for name in (*vars(base), *inspect.get_annotations(base))}
        for name, value in attributes.items():
            default = getattr(cls, name, None)
            if name not in declared or (isinstance(default, bool | str | tuple) and type(value) is not type(default)):
                raise TypeError(f"{cls.__name__} has no {name} that is a {type(value).__name__}")
        return cast("type[_S]", type(cls.__name__, (cls,), attributes))

    def read(self, tag: str) -> Steps[bool]:
        """Reads the text after a tag. Returns False if it was no markup after all; then all that was read is text."""
        raise NotImplementedError

    def start(self) -> Steps[bool]:
        """Reads calls or reasoning without a tag at the beginning of an answer. Returns False if there is none."""
        raise NotImplementedError

    def call_follows(self) -> Steps[bool]:
        """Returns whether a call follows a tag of calls. The caller records the text, and goes back to its place."""
        return (yield from self.scanner.space()) == "{"

    @classmethod
    def opened(cls, prompt_tail: str) -> bool:
        """Returns whether a prompt with this end leaves reasoning open."""
        return bool(cls.start_tag) and prompt_tail.rstrip().endswith(cls.start_tag.rstrip())

    @classmethod
    def reasoning_form(cls) -> ReasoningForm | None:
        """Returns the form of the reasoning for grammars, or None if they cannot write it."""
        return None

    def resume(self) -> Steps[None]:
        """Reads the rest of reasoning that the prompt has opened."""
        raise NotImplementedError


class Enclosed(Syntax):
    """Reads calls between tags. The last of `tags` ends them; it may be missing, and is text if no calls precede it."""

    _open = False

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.tags[-1]:
            was_open, self._open = self._open, False
            return was_open
        self._open = yield from self.enclosed(tag)
        return self._open

    def enclosed(self, tag: str) -> Steps[bool]:
        """Reads the calls after a begin tag. Returns False if there is none."""
        raise NotImplementedError


class CombinedParser:
    """Runs a tool syntax and a reasoning syntax, each optional, over one stream.

    White space at the beginning of an answer and around calls is held back until something follows. Before a call it is
    dropped as layout, and before text it belongs to the text.
    """

    def __init__(self, tools: Sequence[Json] = (), prompt_tail: str = "") -> None:
        """Begins the parsing of one choice, with the tools that it may call and the prompt's end with its markup."""
        self.scanner = Scanner()
        self.parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        """The JSON schemas of the tools' parameters, by the names of the tools."""
        self.prompt_tail = prompt_tail
        self.syntaxes: list[Syntax] = []
        self.count = 0
        self._ids: set[str] = set()
        self._blanks: list[str] | None = None
        self._events: list[Event] = []
        self._kind: _Kind = Text
        self._pieces: list[str] = []
        self._args = False
        self._last = ""
        self._content_in_call = False

    def configure(self, syntaxes: Iterable[Syntax]) -> None:
        """Sets the syntaxes. It is called once, before the first text."""
        self.syntaxes = list(syntaxes)
        self._by_tag = {tag: syntax for syntax in reversed(self.syntaxes) for tag in syntax.tags}
        self._noise = frozenset(tag for syntax in self.syntaxes for tag in syntax.noise)
        self.markup = _tags((*self._by_tag, *self._noise))
        self._starters = [syntax for syntax in self.syntaxes if syntax.at_start]
        inside = (tag for syntax in self.syntaxes for tag in syntax.inside if tag)
        self.tags = (*self.markup.all, *inside)
        """All markup. Special tokens that are no part of it are not in the text."""
        self.markup_in_calls = _tags(tuple(tag for tag in self.markup.all if tag != FENCE))
        """The markup without code fences, which arguments may contain."""
        self._may_call = bool(self._starters) or any(syntax.tools for syntax in self.syntaxes)
        self._blanks = [] if self._may_call else None
        self._steps = self._run(next((s for s in self.syntaxes if s.thinking and s.opened(self.prompt_tail)), None))

    def feed(self, text: str) -> list[Event]:
        if text:
            self.scanner.feed(text)
            next(self._steps)
        return self._drain()

    def finish(self, ended_by: str = "") -> list[Event]:
        in_calls = bool(self.count) and self._blanks is not None
        self.scanner.feed(ended_by)
        self.scanner.ended, self.scanner.last = True, ended_by
        next(self._steps, None)
        if self._blanks and not self.count:
            self._push(Text, "".join(self._blanks))
        self._blanks = None
        events = _without_token(ended_by, self._drain()) if ended_by else self._drain()
        return events if self._content_in_call else _without_cut_markup(events, in_calls)

    def _run(self, opened: Syntax | None) -> Steps[None]:
        if opened:
            yield from opened.resume()
        while True:
            if self._starters and self._blanks is not None and (yield from self._start()):
                continue
            tag = yield from self.scanner.until(self.markup, self.text)
            if not tag:
                return
            if tag in self._noise:
                continue
            syntax = self._by_tag[tag]
            if not syntax.tools and self._last[-1:] in _QUOTES:
                self.text(tag)
                continue
            self.scanner.record(tag)
            if (yield from self._or_text(syntax.read(tag))) and syntax.tools and self._blanks:
                self._blanks = []

    def _start(self) -> Steps[bool]:
        """Tries the syntaxes that can begin an answer without a tag, and returns whether one has read something."""
        self.scanner.record()
        yield from self.scanner.space()
        self.text(self.scanner.recorded())
        for syntax in self._starters:
            self.scanner.record()
            if (yield from syntax.start()):
                self.scanner.forget()
                self._blanks = [] if self._blanks else self._blanks
                return True
            self.scanner.unread()
        return False

    def _or_text(self, reading: Steps[bool]) -> Steps[bool]:
        if (yield from reading):
            self.scanner.forget()
            return True
        self.text(self.scanner.recorded())
        return False

    def reader_of_calls(self, tag: str) -> Syntax | None:
        """Returns the syntax that reads calls after a tag, or None."""
        syntax = self._by_tag.get(tag)
        return syntax if syntax is not None and syntax.tools else None

    # Output of the syntaxes.

    def text(self, piece: str) -> None:
        if self._blanks is not None:
            if not piece or piece.isspace():
                self._blanks.append(piece)
                return
            piece = "".join(self._blanks) + piece
            self._blanks = None
        self._last = piece
        self._push(Text, piece)

    def content_of_call(self, piece: str) -> None:
        """Emits text between the parameters of a call, which stays even if the text ends in the call."""
        self._content_in_call = True
        self.text(piece)
        self.pause()

    def reasoning(self, piece: str) -> None:
        self._push(Reasoning, piece)

    def pause(self) -> None:
        """Notes that a block of reasoning has ended, so that an answer may begin."""
        self._last = ""
        if self._blanks is None and self._may_call:
            self._blanks = []

    def call(self, name: str, call_id: str = "") -> None:
        """Starts a call, of which the text recorded so far is part.

        The model may write an id of its own for it, which counts unless an earlier call has the same one.
        """
        self.scanner.forget()
        self._flush()
        if not call_id or call_id in self._ids:
            call_id = new_call_id()
        self._ids.add(call_id)
        self._events.append(ToolCallStart(self.count, call_id, name))
        self.count += 1
        self._blanks = []
        self._last = ""
        self._args = False

    def arguments(self, piece: str) -> None:
        """Emits a piece of the JSON text of the running call's arguments."""
        self._args = self._args or bool(piece.strip())
        self._push(ToolCallDelta, piece)

    def end_call(self) -> None:
        """Ends the running call. If it has no arguments, they are an empty object."""
        if not self._args:
            self.arguments("{}")

    # Adjacent pieces of the same kind in a chunk become one event.

    def _push(self, kind: _Kind, piece: str) -> None:
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._pieces.append(piece)

    def _flush(self) -> None:
        if not self._pieces:
            return
        whole = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
        self._pieces.clear()
        if not whole:
            return
        if self._kind is Text:
            self._events.append(Text(whole))
        elif self._kind is Reasoning:
            self._events.append(Reasoning(whole))
        else:
            self._events.append(ToolCallDelta(self.count - 1, whole))

    def _drain(self) -> list[Event]:
        self._flush()
        if not self._events:
            return []  # not the list itself, which would grow after the caller has it
        events, self._events = self._events, []
        return events


_tags = lru_cache(64)(Tags)
"""Returns the tags of a combination of families from a cache: making them took a quarter of a parser's (2026-11)."""


def _without_token(token: str, events: list[Event]) -> list[Event]:
    """Removes the text of a token from the end of the events.

    As a bare argument, the token may have become a JSON string or a part of one. It is then in the last argument, which
    text between the parameters of a call may follow.
    """
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if isinstance(event, ToolCallStart):
            continue
        for shown, left in ((f'"{token}"', ""), (f'{token}"', '"'), (token, "")):
            if event.text.endswith(shown):
                event.text = event.text.removesuffix(shown) + left
                return events if event.text else [*events[:at], *events[at + 1 :]]
    return events


def _without_cut_markup(events: list[Event], in_calls: bool) -> list[Event]:
    """Removes the beginning of markup, such as half a tag, at which the text ended in or after a call.

    Clients would show it as an answer. Pieces longer than MAX_NAME are no markup, and stay. `events` are the last ones,
    of text that was held back; `in_calls` says that only white space was passed on since the last call.
    """
    kept: list[Event] = []
    for event in events:
        if isinstance(event, ToolCallStart | ToolCallDelta):
            in_calls = True
        elif isinstance(event, Text) and in_calls and len(event.text) <= MAX_NAME:
            continue
        kept.append(event)
    return kept


def new_call_id() -> str:
    """Returns a new id, "call_" and 24 random characters, which is unique over requests and servers."""
    return "call_" + "".join([_ALPHABET[byte % 62] for byte in secrets.token_bytes(24)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """The syntaxes of a name that can be chosen as a parser. Its `ParserRow` says where it is and how it is found."""

    tools: type[Syntax] | None = None
    """The syntax of its calls; None if it is not a tool parser."""
    thinking: type[Syntax] | None = None
    """The syntax of its reasoning; None if it is not a reasoning parser."""
    form: CallForm | None = None
    """The form of its calls for grammars; None if calls cannot be enforced."""
    adapted: Callable[[OutputForm, str], OutputForm] | None = None
    """Adapts the form to the checkpoint by the end of its prompt, for families that spell tags differently."""
