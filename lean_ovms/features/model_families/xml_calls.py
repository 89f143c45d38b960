"""Reads calls in elements with bare text as values, whose types are those of the tool's schema.

A string is passed on while it is written, other values when they are complete. Of a repeated parameter only the first
counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from .base import Syntax
from .scanner import Sink, Steps, Tags, ignore
from .tool_schemas import ParameterSchemas
from .values import STRING, kinds_of, quoted, typed

_IN_NAME = re.compile(r'[^<>"\n]*')
_IN_QUOTED_NAME = re.compile(r"[^<>'\n]*")
_IN_KEY = re.compile(r"[^<>\n]*")
_CDATA = "<![CDATA["
_CDATA_END = Tags(["]]>"])


class XmlCalls(Syntax):
    """Reads calls of the form call_tag NAME after_name (key_tag KEY after_key VALUE value_end)* and one of `ends`."""

    call_tag: ClassVar[str] = ""
    """The beginning of a call before its name, which must follow the other tags; "" if every tag begins a call."""
    block_end: ClassVar[str] = ""
    """The tag at the end of a block of calls, which may be missing, and also ends a call; "" if there are no blocks."""
    any_quotes: ClassVar[bool] = False
    """Whether names and keys may be in single or double quotes, or in none."""
    keys: ClassVar[Mapping[str, str]]
    """The possible key_tags, each with its after_key."""
    after_name: ClassVar[str] = ">"
    """The text after the name."""
    value_end: ClassVar[str]
    """The text after a value."""
    open_ended: ClassVar[bool] = False
    """Whether value_end may be missing before the next parameter or the end of the call, if these begin a line."""
    ends: ClassVar[tuple[str, ...]]
    """The texts that end a call."""
    trim: ClassVar[bool] = True
    """Whether one newline at each side of a value is removed."""
    cdata: ClassVar[bool] = False
    """Whether a value may be a CDATA section, whose text is not changed."""
    python: ClassVar[bool] = False
    """Whether Python's lists and dicts are read even if the schema does not give the type."""
    _open = False

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "ends"):
            cls.between = Tags([*cls.keys, *cls.ends, *filter(None, [cls.block_end])])
            breaks = [f"\n{tag}" for tag in (*cls.keys, *cls.ends)] if cls.open_ended else []
            cls.value_ends = Tags([cls.value_end, *breaks, *cls.ends])
            cls.inside = (*cls.keys, *cls.keys.values(), cls.value_end, *cls.ends, cls.call_tag)
            cls.followers = Tags([*cls.between.all, *cls.noise])
            cls.after_call = Tags([*cls.tags, *cls.noise, *filter(None, [cls.call_tag, cls.block_end])])

    between: ClassVar[Tags]
    value_ends: ClassVar[Tags]
    followers: ClassVar[Tags]
    after_call: ClassVar[Tags]

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.block_end:
            was_open, self._open = self._open, False
            return was_open
        if self.call_tag and tag != self.call_tag:
            yield from self.scanner.space()
            if not (yield from self.scanner.literal(self.call_tag)):
                return False
        return (yield from self.call())

    def call(self) -> Steps[bool]:
        """Reads a call after its beginning. Returns False if it is not a call; the recording of text then continues."""
        name = yield from self.name(self.after_name)
        if not name:
            return False
        self.out.call(name)
        call = _TypedParameters(self, ParameterSchemas(self.out.parameters.get(name)), self.between)
        while True:
            tag = yield from self.scanner.until(self.between, call.strays.append)
            if tag not in self.keys:
                break
            self.scanner.record(tag)
            key = yield from self.name(self.keys[tag])
            if key:
                self.scanner.forget()
                yield from call.read(key)
            elif self.scanner.ended:
                self.scanner.drop_rest()
            else:
                call.strays.append(self.scanner.recorded())
        self._open = tag != self.block_end
        call.finish(complete=bool(tag))
        return True

    def ends_value(self, tag: str) -> Steps[bool]:
        """Returns whether a tag of `value_ends`, which was just read, ends the value or is part of its text.

        The end of a value counts if the next parameter or the end of the call follows. The beginning of a parameter
        counts if its tag is complete. The end of a call counts if another call or nothing follows.
        """
        if tag == self.value_end:
            return (yield from self.scanner.ahead(self.followers)) >= 0
        if tag[1:] in self.keys:  # the tag follows a line break
            return (yield from self.scanner.ahead_in(_IN_KEY)) == ">"
        at = yield from self.scanner.ahead(self.after_call)
        if at > 0 and self.block_end and self.scanner.text[: self.scanner.pos + at].endswith(self.block_end):
            at = yield from self.scanner.ahead(self.after_call, at)
        return at >= 0

    def kinds(self, schema: Any) -> frozenset[str]:
        """Returns the JSON types of the value whose name was just read by its schema. An empty set is any type."""
        return kinds_of(schema)

    def name(self, after: str) -> Steps[str]:
        """Reads a name and the text that must follow it. Returns the name, or "" if there is none."""
        if self.any_quotes and (quote := (yield from self.scanner.peek())) in ('"', "'"):
            yield from self.scanner.literal(quote)
            after = quote + after
        name = yield from self.scanner.word(_IN_QUOTED_NAME if after.startswith("'") else _IN_NAME)
        return name.strip() if (yield from self.scanner.literal(after)) else ""


_S = TypeVar("_S", bound=Syntax)


class Parameters(Generic[_S]):
    """The parameters of one call while they are read."""

    def __init__(self, syntax: _S, schemas: Mapping[str, Any], tags: Tags) -> None:
        """Begins to read the parameters of one call.

        Args:
            syntax: The syntax of the call.
            schemas: The JSON schemas of the parameters, by their names.
            tags: The tags that may follow a parameter.
        """
        self.syntax = syntax
        self.scanner = syntax.scanner
        self.out = syntax.out
        self.schemas = schemas
        self.tags = tags
        self.names: set[str] = set()
        """The names of the parameters so far."""
        self.strays: list[str] = []
        """The texts between the parameters: content, which is passed on after the call."""

    def begin(self, key: str) -> None:
        """Passes on the name of the next parameter."""
        self.out.arguments(("," if self.names else "{") + quoted(key) + ":")
        self.names.add(key)

    def finish(self, *, complete: bool) -> None:
        if complete and self.names:
            self.out.arguments("}")
        elif complete:
            self.out.end_call()
        stray = "".join(self.strays)
        if not complete:
            stray = stray[: self.tags.hold(stray, 0)]  # the text may have ended within a tag
        if stray := stray.strip():
            self.out.content_of_call(stray)


class _TypedParameters(Parameters[XmlCalls]):
    """Reads parameters whose values are one text each."""

    def read(self, key: str) -> Steps[None]:
        if key in self.names:
            yield from self._inside(ignore, cdata=False)
            return
        self.begin(key)
        kinds = self.syntax.kinds(self.schemas.get(key))
        cdata = self.syntax.cdata and (yield from self.scanner.literal(_CDATA))
        trim = self.syntax.trim and not cdata
        if kinds == STRING:
            value = _StringValue(self.out.arguments, trim)
            value.finish(bool((yield from self._inside(value.add, cdata=cdata))))
            return
        pieces: list[str] = []
        end = yield from self._inside(pieces.append, cdata=cdata)
        text = "".join(pieces)
        if end != self.syntax.value_end and not cdata:  # an earlier end tag did not count, because text followed it
            text, _, stray = text.partition(self.syntax.value_end)
            self.strays.append(stray)
        if trim:
            text = text.removeprefix("\n").removesuffix("\n")
        self.out.arguments(typed(text, kinds, python=self.syntax.python) if end else quoted(text)[:-1])

    def _inside(self, sink: Sink, *, cdata: bool) -> Steps[str]:
        """Passes on the text of a value. Returns the tag that ended it, which is read if it is value_end, or ""."""
        if not cdata:
            return (yield from self._until(self.syntax.value_ends, self.syntax.ends_value, sink))
        if not (yield from self._until(_CDATA_END, self._ends_cdata, sink)):
            return ""
        end = yield from self.scanner.until(self.syntax.value_ends, self.strays.append)
        if end != self.syntax.value_end:
            self.scanner.pos -= len(end)
        return end

    def _until(self, ends: Tags, counts: Callable[[str], Steps[bool]], sink: Sink) -> Steps[str]:
        """Passes on all text before an end that counts. Returns this end, or ""."""
        while tag := (yield from self.scanner.until(ends, sink)):
            self.scanner.record(tag)
            if (yield from counts(tag)):
                if tag in (self.syntax.value_end, *_CDATA_END.all):
                    self.scanner.forget()
                else:
                    self.scanner.unread()
                return tag
            self.scanner.forget()
            sink(tag)
        return ""

    def _ends_cdata(self, tag: str) -> Steps[bool]:
        return (yield from self.scanner.ahead(self.syntax.value_ends)) >= 0


class _StringValue:
    """Passes on a string parameter without the newlines before and after it."""

    def __init__(self, sink: Sink, trim: bool) -> None:
        self.sink = sink
        self.trim = trim
        self.begun = False
        self.pending = ""
        sink('"')

    def add(self, piece: str) -> None:
        if not self.trim:
            self.sink(quoted(piece)[1:-1])
            return
        if not self.begun:
            piece = piece[1:] if piece.startswith("\n") else piece
            self.begun = True
        piece = self.pending + piece
        self.pending = "\n" if piece.endswith("\n") else ""
        self.sink(quoted(piece[:-1] if self.pending else piece)[1:-1])

    def finish(self, whole: bool) -> None:
        """Ends the string. If it was cut off, it stays open and keeps its last newline."""
        self.sink('"' if whole else quoted(self.pending)[1:-1])
