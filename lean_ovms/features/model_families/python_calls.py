"""Reads calls in Python's notation, name(key='value', …), for LFM2, Llama 4 and OLMo 3."""

from __future__ import annotations

import re
from collections.abc import Callable

from .base import Syntax
from .literals import Literals, python_text
from .scanner import Steps
from .tool_schemas import ParameterSchemas
from .values import quoted

_NAME = re.compile(r"[\w.\-]*")
_BARE = re.compile(r"[^,)\]}\n]*")
_LITERAL_STARTS = "'\"[({+-.0123456789"


class PythonCalls(Syntax):
    """Reads calls in the notation of Python."""

    decode: Callable[[str], str] = staticmethod(python_text)
    """Returns the text of a string literal, given the characters between its quotes."""
    bare_words = False
    """Whether a word alone is an argument, too."""

    def calls(self, end: str = "]") -> Steps[bool]:
        """Reads calls separated by commas or white space, up to `end`. Returns False if there is none."""
        called = False
        while True:
            mark = yield from self.scanner.space()
            if mark == end:
                self.scanner.pos += 1
                return called
            if mark == "," and called:
                self.scanner.pos += 1
            elif (yield from self.call()):
                called = True
                self.scanner.record()
            else:
                if called:
                    self.out.text(self.scanner.recorded())
                return called

    def call(self) -> Steps[bool]:
        """Reads one call. Returns False if it is none; then nothing was passed on, and text is still recorded."""
        name = yield from self.scanner.word(_NAME)
        if not name or not (yield from self.scanner.literal("(")):
            return False
        mark = yield from self.scanner.space()
        if mark == ")":
            self.scanner.pos += 1
            self.out.call(name)
            self.out.end_call()
            return True
        arguments = _Arguments(self, name)
        if not (yield from arguments.first(mark)):
            return False
        while (yield from arguments.more()):
            pass
        return True


class _Arguments:
    """The arguments of one call while they are read."""

    def __init__(self, syntax: PythonCalls, name: str) -> None:
        self.syntax = syntax
        self.scanner = syntax.scanner
        self.out = syntax.out
        self.name = name
        self.places = list(ParameterSchemas(syntax.out.parameters.get(name)))
        self.names: set[str] = set()
        self.literals = Literals(syntax.scanner, syntax.out.arguments, syntax.decode)

    def first(self, mark: str) -> Steps[bool]:
        """Reads the first argument, with which it is certain that the text is a call. Returns whether there is one."""
        key, positional = yield from self._key(mark)
        if key is None:
            return False
        self.out.call(self.name)
        self.out.arguments("{" + quoted(key) + ":")
        yield from self._value(positional)
        return True

    def more(self) -> Steps[bool]:
        """Reads the text after a value and, if another value follows, that. Returns whether one followed."""
        self.scanner.record()
        mark = yield from self.scanner.space()
        if mark == ")" or mark == "]":  # the list's end: the call's own is missing
            self.scanner.pos += mark == ")"
            self.scanner.forget()
            self.out.arguments("}")
            return False
        if mark != ",":
            self.out.text(self.scanner.recorded())
            return False
        self.scanner.pos += 1
        mark = yield from self.scanner.space()
        if mark == ")":
            return True
        key, positional = yield from self._key(mark)
        if key is None:
            self.out.text(self.scanner.recorded())
            return False
        self.scanner.forget()
        self.out.arguments("," + quoted(key) + ":")
        yield from self._value(positional)
        return True

    def _key(self, mark: str) -> Steps[tuple[str | None, bool]]:
        """Reads key=, and returns the key and False.

        For a value without a key, it returns the next key of the schema and True.

        The key is None if there is neither.
        """
        if mark and mark in _LITERAL_STARTS:
            return self._next_place(), True
        word = yield from self.scanner.word(_NAME)
        mark = yield from self.scanner.space()
        if not word or word in self.names:
            return None, False
        if mark == "=":
            self.scanner.pos += 1
        elif mark not in (",", ")") or not self.syntax.bare_words:
            return None, False
        self.names.add(word)
        return word, False

    def _next_place(self) -> str | None:
        place = next((name for name in self.places if name not in self.names), None)
        if place is not None:
            self.names.add(place)
        return place

    def _value(self, positional: bool) -> Steps[None]:
        """Reads a value: a literal, or bare text up to the end of the argument."""
        mark = yield from self.scanner.space()
        if mark and mark in _LITERAL_STARTS:
            yield from self.literals.value(positional=positional)
            return
        pieces: list[str] = []
        yield from self.scanner.run(_BARE, pieces.append)
        self.out.arguments(bare("".join(pieces).strip()))


def bare(text: str) -> str:
    """Converts an unquoted value to JSON text: True, False and None in any spelling, anything else as a string."""
    word = {"true": "true", "false": "false", "null": "null", "none": "null"}.get(text.lower())
    return word or quoted(text)
