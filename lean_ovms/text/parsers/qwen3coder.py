"""Qwen3-Coder, Qwen3.5 and later: values as bare text, one a line.

<tool_call><function=NAME><parameter=KEY>value</parameter>…</function></tool_call>; the outer tags are optional.
"""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, xml_call
from .detection import Detection
from .scanner import Steps
from .xml_calls import XmlCalls

OUTER = "<tool_call>"
OUTER_END = "</tool_call>"
FUNCTION = "<function="


class Tools(XmlCalls):
    """Calls in function elements. A parameter's end may be missing before the next line's tag."""

    tags = (OUTER, FUNCTION, OUTER_END)
    keys: ClassVar = {"<parameter=": ">"}
    value_end = "</parameter>"
    value_breaks = ("\n<parameter=", "\n</function>")
    ends = ("</function>", OUTER_END)
    _open = False

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.tags[-1]:
            was_open, self._open = self._open, False
            return was_open
        if tag == self.tags[0]:
            yield from self.scanner.space()
            if not (yield from self.scanner.literal(FUNCTION)):
                return False
        return (yield from self.call())

    def ended(self, tag: str) -> None:
        self._open = tag != self.tags[-1]


FORM = CallForm(
    one=xml_call(
        "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", "<parameter=KEY>\n", "\n</parameter>\n"
    ),
    between="\n",
    trigger="<tool_call>",
)

DETECTION = Detection(
    rank=40,
    marks=(("<parameter=", "</parameter>", "<function="),),
    reasoning="qwen3",
    reasoning_marks=("<think>", "</think>"),
)
