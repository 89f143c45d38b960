"""MiniMax M3: an element for each parameter, with inner elements for lists and objects, and a mark before every tag.

]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="NAME">]<]minimax[>[<KEY>value]<]minimax[>[</KEY>…]<]minimax[>[</invoke>…
]<]minimax[>[</tool_call>

A list's elements are called item. An element that is repeated in an object is a list. Values are typed by the tool's
schema; what the schema does not have is text. Reasoning: <mm:think>…</mm:think>. An answer without it may begin with
</mm:think>, as the template writes earlier ones.
"""

from __future__ import annotations

import re

from ...grammar.call_syntax import CallForm
from .base import ModelFamily, Syntax
from .call_forms import xml_call
from .elements import Element, to_json
from .scanner import Sink, Steps, Tags, ignore
from .think_tags import ThinkTags
from .tool_schemas import ParameterSchemas
from .values import STRING, kinds_of, quoted
from .xml_calls import Parameters

MARK = "]<]minimax[>["
CALLS, CALLS_END = f"{MARK}<tool_call>", f"{MARK}</tool_call>"
INVOKE = f"{MARK}<invoke name="
OPEN = f"{MARK}<"
MAX_DEPTH = 64
"""The greatest depth of nested elements. Tags further inside are text."""

_NOISE = ("[e~[",)
_TAG = Tags([OPEN])
_NEXT = Tags([OPEN, *_NOISE])
"""The tags that follow the end tag of a string. Before anything else the end tag is text."""
_NAME = re.compile(r"[^<>\"'\n]*")
_KEY = re.compile(r"[^<>/\"'\s\]]*")


class MiniMaxM3Calls(Syntax):
    """Reads a block of calls. A string is passed on while it is written, other values when they are complete."""

    tags = (CALLS, CALLS_END)
    noise = _NOISE
    inside = (f"{MARK}</invoke>",)
    in_block = False

    def read(self, tag: str) -> Steps[bool]:
        if tag == CALLS_END:
            was_open, self.in_block = self.in_block, False
            return was_open
        called = False
        yield from self.scanner.space()
        while (yield from self.scanner.literal(INVOKE)):
            if not (yield from self._call()):
                break
            called = True
            if not self.in_block:
                return True
            self.scanner.record()
            yield from self.scanner.space()
        if called:
            self.out.text(self.scanner.recorded())
        return called

    def _call(self) -> Steps[bool]:
        quote = yield from self.scanner.peek()
        quote = quote if quote in ('"', "'") else ""
        yield from self.scanner.literal(quote)
        name = (yield from self.scanner.word(_NAME)).strip()
        if not name or not (yield from self.scanner.literal(quote + ">")):
            return False
        self.out.call(name)
        self.in_block = True
        yield from _NestedParameters(self, ParameterSchemas(self.out.parameters.get(name)), _TAG).read_all()
        return True


class _NestedParameters(Parameters[MiniMaxM3Calls]):
    """The parameters of one call while they are read."""

    ended = False

    def read_all(self) -> Steps[None]:
        """Reads everything up to the end of the call. Text between parameters is content, which follows the call."""
        while not self.ended and (yield from self.scanner.until(_TAG, self.strays.append)):
            if not (yield from self._end()):
                yield from self._parameter()
        self.finish(complete=self.ended)

    def _end(self) -> Steps[bool]:
        """Returns whether the tag that has begun ends the call, and thereby also a value without an end of its own."""
        if (yield from self.scanner.literal("/tool_call>")):
            self.syntax.in_block = False
            self.ended = True
        elif (yield from self.scanner.literal("/invoke>")):
            self.ended = True
        return self.ended

    def _parameter(self) -> Steps[None]:
        self.scanner.record(OPEN)
        key = yield from self._key()
        if not key:
            if self.scanner.ended:
                self.scanner.drop_rest()
            else:
                self.strays.append(self.scanner.recorded())
            return
        self.scanner.forget()
        if key in self.names:
            yield from self._string(key, ignore)
            return
        self.begin(key)
        schema = self.schemas.get(key)
        if kinds_of(schema) == STRING:
            self.out.arguments('"')
            if (yield from self._string(key, lambda piece: self.out.arguments(quoted(piece)[1:-1]))):
                self.out.arguments('"')
            return
        self.scanner.record()
        element = yield from self._element(key)
        raw = self.scanner.recorded()
        if element:
            self.out.arguments(to_json(element, schema))
        else:
            self.out.arguments(quoted(raw.rpartition(OPEN)[0]) if self.ended else quoted(raw)[:-1])

    def _key(self) -> Steps[str]:
        key = yield from self.scanner.word(_KEY)
        return key if key and (yield from self.scanner.literal(">")) else ""

    def _string(self, key: str, sink: Sink) -> Steps[bool]:
        """Passes on the text of a value, and returns whether its end was found.

        Other tags in it are text, except for the end of the call.
        """
        while (yield from self.scanner.until(_TAG, sink)):
            if (yield from self.scanner.literal(f"/{key}>")):
                if (yield from self.scanner.ahead(_NEXT)) >= 0:
                    return True
                sink(f"{OPEN}/{key}>")
            elif (yield from self._end()):
                return True
            else:
                sink(OPEN)
        return False

    def _element(self, key: str) -> Steps[Element | None]:
        """Reads a value with inner elements. Returns None if it has no end."""
        open_names = [key]
        elements = [Element(key)]
        while (yield from self.scanner.until(_TAG, elements[-1].texts.append)):
            text = elements[-1].texts.append
            if (yield from self.scanner.literal(f"/{open_names[-1]}>")):
                name = open_names.pop()
                if not open_names:
                    return elements[0]
                if len(open_names) < len(elements):
                    elements.pop()
                else:
                    text(f"{OPEN}/{name}>")
            elif (yield from self._end()):
                return None
            elif name := (yield from self._key()):
                open_names.append(name)
                if len(elements) == len(open_names) - 1 and len(elements) < MAX_DEPTH:
                    elements[-1].children.append(Element(name))
                    elements.append(elements[-1].children[-1])
                else:
                    text(f"{OPEN}{name}>")
            else:
                text(OPEN)
        return None


MINIMAX_M3 = ModelFamily(
    tools=MiniMaxM3Calls,
    thinking=ThinkTags.variant(
        start_tag="<mm:think>",
        end_tag="</mm:think>",
        breaks=(CALLS,),
        noise=(*_NOISE, "</mm:think>"),
    ),
    form=CallForm(
        one=xml_call(f'{INVOKE}"NAME">', f"{MARK}</invoke>", f"{OPEN}KEY>", f"{MARK}</KEY>"),
        before=CALLS + "\n",
        between="\n",
        after="\n" + CALLS_END,
        trigger=CALLS,
    ),
)
