"""Reads calls that are JSON objects, {"name": …, "arguments": {…}}, and passes on arguments while they are written."""

from __future__ import annotations

import json
import re
from typing import ClassVar

import orjson

from .base import FENCE, CombinedParser, Enclosed, Syntax
from .literals import literal_to_json
from .scanner import QUOTES, Sink, Steps, ignore

_LANGUAGE = re.compile(r"[A-Za-z0-9_+.\-]*")
"""The name of a language after the beginning of a code block."""
_NESTED = "function"
"""The key of the call in {"type": "function", "function": {"name": …, "arguments": …}}, as clients send calls."""
_IGNORED_KEYS = frozenset(("id", "type", "index", "tool_call_id"))
"""Other keys that models write into calls, which are dropped."""


class JsonCalls(Syntax):
    """Reads call objects after a tag that has no end tag."""

    name_keys: ClassVar[tuple[str, ...]] = ("name", "function")
    """The possible keys of the function's name."""
    argument_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    """The possible keys of its arguments."""
    nested_keys: ClassVar[tuple[str, ...]] = ("arguments",)
    """The possible keys of its arguments in the form in which clients send calls. A definition of a tool, which models
    repeat, has that form too, with parameters."""
    one_call: ClassVar[bool] = False
    """Whether only one object follows a tag."""
    start_brackets: ClassVar[str] = "["
    """The first characters of calls without a tag, if at_start: "[" for a list of calls, "{" for single ones."""
    offered_only: ClassVar[bool] = False
    """Whether a call without a tag must name a tool that the client offers; JSON with other names is then text."""

    def read(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        return (yield from (self.call() if self.one_call else self.calls()))

    def start(self) -> Steps[bool]:
        bracket = yield from self.scanner.space()
        if not bracket or bracket not in self.start_brackets:
            return False
        if bracket == "[":
            self.scanner.pos += 1
            if (yield from self.scanner.space()) != "{":
                return False
        return (yield from self.calls(eager=False))

    def fenced(self) -> Steps[bool]:
        """Reads calls in a code fence of any language, and the fence's end. Returns False if there is none."""
        yield from self.scanner.word(_LANGUAGE)
        yield from self.scanner.space()
        if not (yield from self.start()):
            return False
        yield from self.scanner.space()
        yield from self.scanner.literal(FENCE)
        return True

    def call(self, *, eager: bool = True) -> Steps[bool]:
        """Reads one object, and returns whether it is a call. If it is not, the recording of text continues.

        If `eager`, an object with a name is a call. Otherwise it must also have arguments and no other members, since
        an answer in JSON may look like a call without tags.
        """
        if not (yield from self.scanner.literal("{")):
            return False
        yield from self.scanner.literal("{")  # the braces may be doubled (see `calls`)
        call = _Call(self, eager)
        return call.complete() if (yield from call.members()) else call.broken()

    def calls(self, *, eager: bool = True) -> Steps[bool]:
        """Reads objects, single or in a list, separated by "," or ";". Returns False if the first one is not a call.

        Qwen2.5's first chat templates show calls in doubled braces, of which models copy both or only the last.
        """
        called = False
        while True:
            mark = yield from self.scanner.space()
            if mark and mark in "[,;":
                self.scanner.pos += 1
            elif mark == "]" and called:
                self.scanner.pos += 1
                return True
            elif mark == "}" and called:
                self.scanner.pos += 1
            elif mark != "{":
                return called
            else:
                if called:
                    self.scanner.record()
                if (yield from self.call(eager=eager)):
                    called = True
                    continue
                if called:
                    self.out.text(self.scanner.recorded())
                return called


class EnclosedJson(Enclosed, JsonCalls):
    """Reads call objects between tags."""

    def enclosed(self, tag: str) -> Steps[bool]:
        return (yield from self.calls())


class EnclosedOrOffered(EnclosedJson):
    """Reads call objects between tags, and also objects without tags if they name a tool of the request.

    The latter are in a code fence or are the whole answer. Models with little training on the tags write them:
    Qwen2.5-Coder 1.5B wrote nine of nine calls in a fence.
    """

    at_start = True
    offered_only = True
    start_brackets = "[{"

    def read(self, tag: str) -> Steps[bool]:
        return (yield from (self.fenced() if tag == FENCE else super().read(tag)))


class _Call:
    """One call object while it is read."""

    def __init__(self, syntax: JsonCalls, eager: bool) -> None:
        self.syntax = syntax
        self.scanner = syntax.scanner
        self.out = syntax.out
        self.eager = eager
        self.name = ""
        self.started = False
        self.early: list[str] | None = None
        """Argument text that came before the name."""
        self.extra: list[str] = []
        """Members that are no part of a call: returned as text, not lost."""
        self._argument_keys = syntax.argument_keys
        self._complete = False
        """Whether arguments have been read. Further ones are dropped."""

    def members(self) -> Steps[bool]:
        """Reads the members of an object and the brace after them. Returns False if the object breaks off."""
        while True:
            mark = yield from self.scanner.space()
            if mark == "}":
                self.scanner.pos += 1
                return True
            if mark == ",":
                self.scanner.pos += 1
                continue
            if self.started:
                self.scanner.record()  # so that text which turns out not to be an argument becomes content
            if not mark or mark not in QUOTES or not (yield from self.member()):
                return False

    def member(self) -> Steps[bool]:
        """Reads one "key": value. Returns False if the object breaks off here."""
        key: list[str] = []
        if not (yield from self.scanner.json_string(key.append)) or (yield from self.scanner.space()) != ":":
            return False
        self.scanner.pos += 1
        first = yield from self.scanner.space()
        word = decoded("".join(key))
        if word in self._argument_keys:
            return (yield from self.arguments(first))
        if word == _NESTED and first == "{" and not self.name:
            self.scanner.pos += 1
            self.eager, self._argument_keys = False, self.syntax.nested_keys
            return (yield from self.members())
        if word in self.syntax.name_keys and first and first in QUOTES and not self.name:
            return (yield from self.read_name())
        if word in _IGNORED_KEYS:
            return (yield from self.scanner.json_value(ignore))
        if not self.eager and not self.started:
            return False
        key.append(": ")
        whole = yield from self.scanner.json_value(key.append)
        if whole:
            self.extra += key
        return whole

    def read_name(self) -> Steps[bool]:
        """Reads the name of the function, and begins the call if it is certain that this is one."""
        name: list[str] = []
        if not (yield from self.scanner.json_string(name.append)):
            return False
        self.name = decoded("".join(name))
        if self.syntax.offered_only and not self.eager and self.name not in self.out.parameters:
            return False
        if self.name and (self.early is not None or self.eager):
            self.begin()
        return bool(self.name)

    def arguments(self, first: str) -> Steps[bool]:
        """Reads the arguments, and passes them on, or keeps them until the name is known."""
        if self._complete:
            return (yield from self.scanner.json_value(ignore))
        if first and first in "nN":  # null, as in JSON or Python
            self.add_arguments("")
            return (yield from self.scanner.json_value(ignore))
        self._complete = True
        if first and first in QUOTES:
            quoted: list[str] = []
            whole = yield from self.scanner.json_string(quoted.append)
            if whole or self.started:
                self.add_arguments(unwrapped("".join(quoted), whole))
            return whole
        if first != "{" and not self.started:
            return False
        self.add_arguments("")
        if not self.started:
            return (yield from self.scanner.json_value(self.add_arguments))
        return (yield from json_arguments(self.out, self.add_arguments, in_call=True))

    def add_arguments(self, piece: str) -> None:
        """Passes on argument text, or keeps it until the name is known."""
        if not self.started and self.name:
            self.begin()
        if self.started:
            self.scanner.forget()
            self.out.arguments(piece)
        elif self.early is None:
            self.early = [piece]
        else:
            self.early.append(piece)

    def begin(self) -> None:
        """Begins the call: passes on its name, and the arguments that were read before it."""
        self.started = True
        self.out.call(self.name)
        for piece in self.early or ():
            self.out.arguments(piece)

    def broken(self) -> bool:
        """Ends an object that breaks off, and returns whether it was a call."""
        if self.started:
            self.out.text("".join(self.extra) + self.scanner.recorded())
        return self.started

    def complete(self) -> bool:
        """Ends a complete object, and returns whether it was a call."""
        if not self.started and self.name and self.eager:
            self.begin()
        if self.started:
            self.out.end_call()
            self.out.text("".join(self.extra))
        return self.started


def decoded(literal: str) -> str:
    """Decodes a JSON string literal that Scanner.json_string has passed on; half a surrogate pair becomes U+FFFD."""
    text: str = json.loads(literal)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unwrapped(literal: str, whole: bool) -> str:
    """Returns the JSON object inside arguments that are written as a string, or the literal if it contains none."""
    if not whole:
        return literal
    text = decoded(literal)
    if not text.strip():
        return "{}"
    try:
        inner = orjson.loads(text)
    except orjson.JSONDecodeError:
        return (literal_to_json(text) if text.lstrip().startswith("{") else None) or literal
    return text if isinstance(inner, dict) else literal


_CLOSING = " \t\r\n]}`"
_HELD = 64
"""The most characters at the end of broken arguments in which closing brackets of the enclosing object are found."""


def json_arguments(out: CombinedParser, sink: Sink, *, in_call: bool = False) -> Steps[bool]:
    """Passes on arguments while they are written. Returns False if they break off.

    After a mistake, such as a quote that is not escaped, everything up to the next tag belongs to the arguments, code
    fences included. The client gets them as the model wrote them, and no part of them becomes text.

    Args:
        out: The parser whose text is read.
        sink: Gets the arguments in pieces.
        in_call: Whether they are a member of a call's object, so that closing brackets are between them and the tag.
    """
    pending = ""

    def more(piece: str) -> None:
        nonlocal pending
        text = pending + piece
        end = max(len(text.rstrip(_CLOSING)), len(text) - _HELD)
        if end:
            sink(text[:end])
        pending = text[end:]

    if (yield from out.scanner.json_value(sink, more, out.markup_in_calls)):
        sink(pending)
        return True
    while (tag := (yield from out.scanner.until(out.markup, more))) == FENCE:
        more(tag)
    out.scanner.pos -= len(tag)
    pending = pending.rstrip().removesuffix(FENCE).rstrip()
    if in_call:
        pending = pending.removesuffix("]").rstrip().removesuffix("}").rstrip()
    if pending:
        sink(pending)
    elif tag:
        out.end_call()
    return False
