"""Onyx: messages to a recipient; one class reads both calls and reasoning.

<|start|>assistant to=self<|message|>reasoning<|eom|>   to=user, or nobody: the answer, to=TOOL: a call inside
<atem:function_calls><atem:invoke name="NAME"><atem:parameter name="KEY">value</atem:parameter>…</atem:invoke>…
</atem:function_calls>, values typed by the tool's schema; the template says that they are not stripped. The prompt
ends with <|start|>assistant.
"""

from __future__ import annotations

import re
from typing import ClassVar

from ...grammar.call_syntax import CallForm, ReasoningForm
from .base import ModelFamily
from .call_forms import xml_call
from .scanner import Steps, Tags
from .xml_calls import XmlCalls

START, MESSAGE = "<|start|>", "<|message|>"
ENDS = ("<|eom|>", "<|eot|>")
INVOKE = '<atem:invoke name="'
CALLS, CALLS_END = "<atem:function_calls>", "</atem:function_calls>"
_HEADER = Tags([START, MESSAGE, *ENDS])
_BODY = Tags([START, *ENDS])
MAX_HEADERS = 64
"""The most tools whose header is recognised in the middle of a text, where the model forgot <|start|>assistant."""

_NAME = re.compile(r"[\w.\-]+")
_RECIPIENT = re.compile(r"(?:to=[\w.\-]+)?")


class Onyx(XmlCalls):
    """Reads messages and calls. Calls are text if it does not read calls."""

    noise = (MESSAGE, *ENDS)
    at_start = True
    start_tag = "to=self<|message|>"
    answer_header = " to=user<|message|>"
    keys: ClassVar = {'<atem:parameter name="': '">'}
    after_name = '">'
    value_end = "</atem:parameter>"
    ends = ("</atem:invoke>",)
    call_tag = INVOKE
    block_end = CALLS_END
    trim = False

    def prepare(self) -> None:
        known = [name for name in self.out.parameters if self.tools and _NAME.fullmatch(name)]
        self._headers = {f"to={name}{MESSAGE}": name for name in ["self", "user", *known[:MAX_HEADERS]]}
        self.tags = (START, *self._headers)
        if self.tools:
            self.tags += (CALLS, CALLS_END, INVOKE)
        self._thought = False

    def read(self, tag: str) -> Steps[bool]:
        if tag in (CALLS, CALLS_END, INVOKE):
            return (yield from super().read(tag))
        if tag != START:
            yield from self._message(self._headers[tag])
            return True
        return (yield from self.scanner.literal("assistant")) and (yield from self._addressed())

    def start(self) -> Steps[bool]:
        if not (yield from self.scanner.literal("to=")):
            return False
        return (yield from self._addressed("to="))

    def resume(self) -> Steps[None]:
        yield from self._message("self")

    @classmethod
    def reasoning_form(cls) -> ReasoningForm:
        return ReasoningForm(start=" " + cls.start_tag, end="<|eom|>", after=START + "assistant", opened=cls.opened)

    def _addressed(self, before: str = "") -> Steps[bool]:
        """Reads a header, and the message after it if that is reasoning."""
        rest, end = yield from self.scanner.head(_HEADER)
        header = (before + rest).strip()
        if end != MESSAGE or not _RECIPIENT.fullmatch(header):
            return False
        yield from self._message(header.removeprefix("to="))
        return True

    def _message(self, to: str) -> Steps[None]:
        """Reads the message after a header: reasoning to its end, anything else as content."""
        self.scanner.forget()
        if to == "self" and self.thinking:
            if self._thought:
                self.out.reasoning("\n")
            self._thought = True
            end = yield from self.scanner.until(_BODY, self.out.reasoning)
            self.scanner.pos -= len(START) if end == START else 0
            self.out.pause()


ONYX = ModelFamily(
    tools=Onyx,
    thinking=Onyx,
    form=CallForm(
        one=xml_call(
            ' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
            "</atem:invoke>\n</atem:function_calls>",
            '<atem:parameter name="KEY">',
            "</atem:parameter>\n",
        ),
        alone=True,
    ),
)
