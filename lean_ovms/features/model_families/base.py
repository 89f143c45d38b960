"""The base class of a family's syntax, and the parser that runs syntaxes: text in, events out.

A `Syntax` knows the tags of a family's calls or reasoning, and reads on after one. `CombinedParser` runs at most one of
each over one scanner, so that a reasoning tag inside a call's arguments is argument text; it is the AnswerParser of the
rest of the server. A `ModelFamily` names the syntaxes of one family.

Knows no family, no request, no token ids. A parser never raises on a model's output.
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
from .scanner import Scanner, Steps, Tags

if TYPE_CHECKING:
    from ...grammar.call_syntax import CallForm, OutputForm, ReasoningForm

_Kind = type[Text] | type[Reasoning] | type[ToolCallDelta]
_QUOTES = ("`", '"', "'")
"""Before a reasoning tag they show that the text is about the tag."""

_ALPHABET = string.ascii_letters + string.digits


_S = TypeVar("_S", bound="Syntax")


class Syntax:
    """The syntax in which one family writes calls or reasoning."""

    tags: tuple[str, ...] = ()
    """The markup to look for; `read` is called after each."""
    noise: tuple[str, ...] = ()
    """Markup without a meaning, which is removed from content."""
    keep_special_tokens: ClassVar[bool] = False
    """Whether the text must contain the special tokens among its markup."""
    at_start: ClassVar[bool] = False
    """Whether `start` is tried where an answer may begin."""
    start_tag: ClassVar[str] = ""
    """For reasoning, what a prompt ends with that leaves reasoning open."""
    answer_header: ClassVar[str] = ""
    """What the family writes before the content of an answer."""
    between_tags: ClassVar[bool] = False
    """Whether its reasoning stands between tags that no answer shows."""

    def __init__(self, out: CombinedParser, *, tools: bool = False, thinking: bool = False) -> None:
        """Makes an instance for one choice. A format whose two parts cannot be told apart plays both.

        Args:
            out: Takes what is read.
            tools: Whether it is to read calls.
            thinking: Whether it is to read reasoning.
        """
        self.out = out
        self.scanner = out.scanner
        self.tools = tools
        self.thinking = thinking
        self.prepare()

    def prepare(self) -> None:
        """Sets what an instance has of its own, such as tags that depend on the tools or the prompt."""

    @classmethod
    def variant(cls: type[_S], **attributes: object) -> type[_S]:
        """Makes a subclass that has these class attributes: the syntax of one more family of this shape.

        Raises TypeError for an attribute that the class does not declare, or whose default is of another type.
        """
        declared = {name for base in cls.__mro__ for name in (*vars(base), *inspect.get_annotations(base))}
        for name, value in attributes.items():
            default = getattr(cls, name, None)
            if name not in declared or (isinstance(default, bool | str | tuple) and type(value) is not type(default)):
                raise TypeError(f"{cls.__name__} has no {name} that is a {type(value).__name__}")
        return cast("type[_S]", type(cls.__name__, (cls,), attributes))

    def read(self, tag: str) -> Steps[bool]:
        """Reads on after a tag. False: it was not markup after all, and all that was read since is plain text."""
        raise NotImplementedError

    def start(self) -> Steps[bool]:
        """Reads something that has no tag, where an answer begins. False as for `read`."""
        raise NotImplementedError

    def call_follows(self) -> Steps[bool]:
        """Tells whether a call comes next, behind a tag of calls. Who asks has a record, and goes back."""
        return (yield from self.scanner.space()) == "{"

    @classmethod
    def opened(cls, prompt_tail: str) -> bool:
        """Tells whether the prompt ends with reasoning already open."""
        return bool(cls.start_tag) and prompt_tail.rstrip().endswith(cls.start_tag.rstrip())

    @classmethod
    def reasoning_form(cls) -> ReasoningForm | None:
        """Returns how a grammar writes this reasoning; None: it cannot."""
        return None

    def resume(self) -> Steps[None]:
        """Reads on inside reasoning that the prompt opened."""
        raise NotImplementedError


class Enclosed(Syntax):
    """Calls between tags. The last of `tags` ends them: it may be missing, and without calls before it, it is text."""

    _open = False

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.tags[-1]:
            was_open, self._open = self._open, False
            return was_open
        self._open = yield from self.enclosed(tag)
        return self._open

    def enclosed(self, tag: str) -> Steps[bool]:
        """Reads on after a begin tag. False as for `read`."""
        raise NotImplementedError


class CombinedParser:
    """Runs a tool syntax and a reasoning syntax, each optional, over one stream.

    Blanks where an answer begins, and around calls, are kept back until something follows: before a call they are
    layout and vanish, before text they belong to it.
    """

    def __init__(self, tools: Sequence[Json] = (), prompt_tail: str = "") -> None:
        """Begins a choice.

        Args:
            tools: The tools that it may call.
            prompt_tail: The end of the prompt, with its markup.
        """
        self.scanner = Scanner()
        self.parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        """The JSON schemas of the tools' parameters, by the names of the tools."""
        self.prompt_tail = prompt_tail
        self.syntaxes: list[Syntax] = []
        self.count = 0
        self._blanks: list[str] | None = None
        self._events: list[Event] = []
        self._kind: _Kind = Text
        self._pieces: list[str] = []
        self._args = False
        self._last = ""

    def configure(self, syntaxes: Iterable[Syntax]) -> None:
        """Sets the syntaxes, once, before the first text."""
        self.syntaxes = list(syntaxes)
        self._by_tag = {tag: syntax for syntax in reversed(self.syntaxes) for tag in syntax.tags}
        self._noise = frozenset(tag for syntax in self.syntaxes for tag in syntax.noise)
        self.markup = _tags((*self._by_tag, *self._noise))
        self._starters = [syntax for syntax in self.syntaxes if syntax.at_start]
        self.tags = self.markup.all
        self.keep_special_tokens = any(syntax.keep_special_tokens for syntax in self.syntaxes)
        self._may_call = bool(self._starters) or any(syntax.tools for syntax in self.syntaxes)
        self._blanks = [] if self._may_call else None
        self._steps = self._run(next((s for s in self.syntaxes if s.thinking and s.opened(self.prompt_tail)), None))

    def feed(self, text: str) -> list[Event]:
        if text:
            self.scanner.feed(text)
            next(self._steps)
        return self._drain()

    def finish(self, ended_by: str = "") -> list[Event]:
        self.scanner.feed(ended_by)
        self.scanner.ended, self.scanner.last = True, ended_by
        next(self._steps, None)
        if self._blanks and not self.count:
            self._push(Text, "".join(self._blanks))
        self._blanks = None
        return _without_token(ended_by, self._drain()) if ended_by else self._drain()

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
        """Tries what may begin an answer without a tag; whether something was read."""
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
        """Returns the syntax that reads calls after a tag; None: there is none."""
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

    def reasoning(self, piece: str) -> None:
        self._push(Reasoning, piece)

    def pause(self) -> None:
        """Ends a block of reasoning; an answer may begin here."""
        self._last = ""
        if self._blanks is None and self._may_call:
            self._blanks = []

    def call(self, name: str, call_id: str = "") -> None:
        """Starts a call; the text recorded so far is part of it.

        Args:
            name: The name of the function.
            call_id: The model's own id of the call, where it writes one.
        """
        self.scanner.forget()
        self._flush()
        self._events.append(ToolCallStart(self.count, call_id or new_call_id(), name))
        self.count += 1
        self._blanks = []
        self._last = ""
        self._args = False

    def arguments(self, piece: str) -> None:
        """Emits a piece of the JSON text of the running call's arguments."""
        self._args = self._args or bool(piece)
        self._push(ToolCallDelta, piece)

    def end_call(self) -> None:
        """Completes the call; one without arguments gets an empty object."""
        if not self._args:
            self.arguments("{}")

    # Pieces of one kind from one chunk become one event.

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
            return []  # never the own list, which would grow in the caller's hands
        events, self._events = self._events, []
        return events


_tags = lru_cache(64)(Tags)
"""Those of a combination of families; making them took a quarter of making a parser (2026-11)."""


def _without_token(token: str, events: list[Event]) -> list[Event]:
    """Returns events but for a token at their end, which may have become a string, or a part of one, as a bare
    argument.

    Text that stood between the parameters of a call comes after the argument with the token.
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


def new_call_id() -> str:
    """Returns call_ and 24 random characters: unique over requests and servers."""
    return "call_" + "".join([_ALPHABET[byte % 62] for byte in secrets.token_bytes(24)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """One name that can be chosen as a parser. A `manifest.ParserRow` says where it is, and how it is recognised."""

    tools: type[Syntax] | None = None
    """The reader of its calls, which makes it a tool parser."""
    thinking: type[Syntax] | None = None
    """The reader of its reasoning, which makes it a reasoning parser."""
    form: CallForm | None = None
    """How it writes calls; without it the model cannot be made to call."""
    adapted: Callable[[OutputForm, str], OutputForm] | None = None
    """For a family whose checkpoints spell their tags differently: the form of the checkpoint whose prompt has this
    end."""
