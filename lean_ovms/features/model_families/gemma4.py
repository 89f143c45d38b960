"""Gemma 4: <|tool_call>call:NAME{key:<|"|>text<|"|>,n:1,list:[…],object:{…}}<tool_call|>

A block between the tags may have several calls. The model at times writes a colon before the word "call" or in its
place, begins a call without the tag, or forgets the mark at the beginning of a string.

Reasoning: <|channel>thought + newline … <channel|>.

FunctionGemma: the same notation in other tags,
<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>. A value between <escape> need not be a
string: the tool's schema says what it is.
"""

from __future__ import annotations

import json
import re
from typing import ClassVar

from ...grammar.call_syntax import CallForm
from .base import Enclosed, ModelFamily
from .call_forms import arguments_after
from .literals import number_or_word
from .scanner import Steps, Tags
from .think_tags import ThinkTags
from .tool_schemas import ParameterSchemas
from .values import STRING, kinds_of, quoted, typed

START = "<|tool_call>"
END = "<tool_call|>"
QUOTE = '<|"|>'
MAX_DEPTH = 256
_NAME = re.compile(r"[\w.\-]*")
_KEY = re.compile(r"[^:,<>{}\[\]]*")
_BARE = re.compile(r"[^,<>{}\[\]]*")
_IN_TEXT = re.compile(r"[^:<>{}\[\]]*")
"""Text in which no further key begins."""
_CLOSERS = {"{": "}", "[": "]"}
_NOISE = ("<turn|>", "<|tool_response>", "<eos>")


class GemmaCalls(Enclosed):
    """Reads calls between Gemma's tags, in which a mark stands at each side of a string in place of a quote."""

    tags = (START, END)
    noise = _NOISE
    quote: ClassVar[Tags] = Tags([QUOTE])
    inside = quote.all
    at_start = True

    def start(self) -> Steps[bool]:
        if not (yield from self.scanner.literal("call:")):
            return False
        name = yield from self.scanner.word(_NAME)
        if name not in self.out.parameters or (yield from self.scanner.space()) != "{":
            return False
        yield from self._arguments(name)
        self._open = True
        return True

    def enclosed(self, tag: str) -> Steps[bool]:
        called = False
        yield from self.scanner.space()
        while (yield from self._begins()):
            if not (yield from self._call()):
                break
            called = True
            self.scanner.record()
            if (yield from self.scanner.space()) == ",":
                self.scanner.pos += 1
                yield from self.scanner.space()
        if called:
            self.out.text(self.scanner.recorded())
        return called

    def _begins(self) -> Steps[bool]:
        """Reads what comes before a name, and returns whether there was any of it."""
        colon = yield from self.scanner.literal(":")
        return (yield from self.scanner.literal("call:")) or colon

    def _call(self) -> Steps[bool]:
        yield from self.scanner.space()
        name = yield from self.scanner.word(_NAME)
        if not name or (yield from self.scanner.space()) != "{":
            return False
        yield from self._arguments(name)
        return True

    def _arguments(self, name: str) -> Steps[None]:
        self.out.call(name)
        self._schemas = ParameterSchemas(self.out.parameters.get(name))
        self._closers = closers = list[str]()
        if not (yield from self._value(closers)) and (yield from self._over()):
            self.out.arguments("".join(reversed(closers)))

    def _over(self) -> Steps[bool]:
        """Returns whether the end tag comes next. It ends all brackets that are still open."""
        end = self.tags[-1]
        if not (yield from self.scanner.literal(end)):
            return False
        self.scanner.pos -= len(end)
        return True

    def _value(self, closers: list[str]) -> Steps[bool]:
        """Emits the arguments as JSON, with the closing brackets of open ones. Returns whether they were complete."""
        key = False
        while True:
            mark = yield from self.scanner.space()
            missing = False
            if key and mark != "}":
                if not (yield from self._key()):
                    return False
                mark = yield from self.scanner.space()
                missing = mark in (",", "}") or (yield from self._over())
            if mark in _CLOSERS and len(closers) < MAX_DEPTH:
                self.scanner.pos += 1
                self.out.arguments(mark)
                closers.append(_CLOSERS[mark])
                key = mark == "{"
                continue
            if missing:
                self.out.arguments('""')
            elif mark != closers[-1] and not (yield from self._atom(_BARE)):
                return False
            after = yield from self._after(closers)
            if after is None:
                return not closers
            key = after

    def _after(self, closers: list[str]) -> Steps[bool | None]:
        """Reads the text after a value. Returns whether a key comes next, or None if neither can follow."""
        while closers:
            mark = yield from self.scanner.space()
            if mark == closers[-1]:
                self.scanner.pos += 1
                self.out.arguments(closers.pop())
            elif mark == ",":
                self.scanner.pos += 1
                if (yield from self.scanner.space()) == closers[-1]:
                    continue
                if (yield from self._over()):
                    return None
                self.out.arguments(",")
                return closers[-1] == "}"
            else:
                return None
        return None

    def _key(self) -> Steps[bool]:
        """Reads a key and its colon. A key that the end tag cuts off gets an empty value."""
        self._word = ""
        if not (yield from self._atom(_KEY)):
            return False
        if (yield from self.scanner.space()) != ":":
            if (yield from self._over()):
                self.out.arguments(':""')
            return False
        self.scanner.pos += 1
        self.out.arguments(":")
        return True

    def _atom(self, inside: re.Pattern[str]) -> Steps[bool]:
        """Reads a string between marks, or bare text, which is a number, a word or a string without quotes."""
        if (yield from self.scanner.literal(self.quote.all[0])):
            return (yield from self._string(key=inside is _KEY))
        pieces: list[str] = []
        yield from self.scanner.run(inside, pieces.append)
        if inside is _BARE and "".join(pieces).strip() and (yield from self._ends_string(pieces)):
            self.out.arguments(quoted("".join(pieces)))
            return True
        text = "".join(pieces).strip()
        if text:
            self._word = text if inside is _KEY else ""
            self.out.arguments(quoted(text) if inside is _KEY else number_or_word(text) or quoted(text))
        return bool(text)

    def _ends_string(self, pieces: list[str]) -> Steps[bool]:
        """Reads the rest of a string that began without a mark, if this ends it. Returns False if nothing was read."""
        mark = self.quote.all[0]
        if (yield from self.scanner.literal(mark)):
            return True
        if self._closers[-1] != "}" or (yield from self.scanner.ahead_in(_IN_TEXT)) != mark[0]:
            return False
        rest: list[str] = []
        self.scanner.record()
        yield from self.scanner.run(_IN_TEXT, rest.append)
        in_key = not "".join(rest).rpartition(",")[2].strip()  # the mark begins the next key
        if not in_key and (yield from self.scanner.literal(mark)):
            self.scanner.forget()
            pieces += rest
            return True
        self.scanner.unread()
        return False

    def _string(self, *, key: bool) -> Steps[bool]:
        """Reads the rest of a string, perhaps a key, after the mark that begins it."""
        self.out.arguments('"')
        if not (yield from self.scanner.until(self.quote, self._characters)):
            return False
        self.out.arguments('"')
        return True

    def _characters(self, piece: str) -> None:
        self.out.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])


class FunctionGemmaCalls(GemmaCalls):
    """Reads calls between FunctionGemma's tags."""

    tags = ("<start_function_call>", "<end_function_call>")
    noise = ("<start_function_response>", "<end_of_turn>", "<eos>")
    quote: ClassVar[Tags] = Tags(["<escape>"])
    inside = quote.all

    def _string(self, *, key: bool) -> Steps[bool]:
        kinds = kinds_of(self._schemas.get(self._word)) if len(self._closers) == 1 else STRING
        if key or kinds == STRING:
            return (yield from super()._string(key=key))
        pieces: list[str] = []
        whole = bool((yield from self.scanner.until(self.quote, pieces.append)))
        text = "".join(pieces)
        self.out.arguments(typed(text, kinds) if whole else quoted(text)[:-1])
        return whole


class GemmaThinking(ThinkTags):
    """Reads reasoning in the channel "thought". A channel of another name is part of the answer."""

    start_tag = "<|channel>thought"
    end_tag = "<channel|>"
    noise = (*_NOISE, end_tag)  # which the model also writes after an answer

    def read(self, tag: str) -> Steps[bool]:
        yield from self.scanner.literal("\n")
        return (yield from super().read(tag))


FUNCTIONGEMMA = ModelFamily(
    tools=FunctionGemmaCalls,
    form=CallForm(
        one=arguments_after("<start_function_call>call:NAME", "<end_function_call>", "functiongemma"),
        trigger="<start_function_call>",
    ),
)
GEMMA4 = ModelFamily(
    tools=GemmaCalls,
    thinking=GemmaThinking,
    form=CallForm(one=arguments_after("call:NAME", "", "gemma"), before=START, after=END, trigger=START),
)
