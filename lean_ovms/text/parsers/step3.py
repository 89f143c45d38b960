"""Step 3, between <｜tool_calls_begin｜> and <｜tool_calls_end｜>, any number of

<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME"><steptml:parameter name="KEY">value
</steptml:parameter>…</steptml:invoke><｜tool_call_end｜>
"""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, xml_call
from .detection import Detection
from .scanner import Steps
from .xml_calls import XmlCalls

BEGIN, END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
INVOKE, INVOKE_END = '<steptml:invoke name="', "</steptml:invoke>"


class Tools(XmlCalls):
    """Calls in invoke elements, with or without the tokens around them."""

    tags = (CALL, INVOKE)
    noise = (BEGIN, END, CALL_END, SEPARATOR, "<|EOT|>")
    keep_special_tokens = True
    keys: ClassVar = {'<steptml:parameter name="': '">'}
    after_name = '">'
    value_end = "</steptml:parameter>"
    ends = (INVOKE_END,)

    def read(self, tag: str) -> Steps[bool]:
        if tag == CALL:
            if (yield from self.scanner.literal("function")):
                yield from self.scanner.literal(SEPARATOR)
            yield from self.scanner.space()
            if not (yield from self.scanner.literal(INVOKE)):
                return False
        return (yield from self.call())


FORM = CallForm(
    one=xml_call(
        f'{CALL}function{SEPARATOR}{INVOKE}NAME">',
        INVOKE_END + CALL_END,
        '<steptml:parameter name="KEY">',
        "</steptml:parameter>",
    ),
    before=BEGIN,
    after=END,
    trigger=BEGIN,
)

DETECTION = Detection(rank=195, marks=(("<steptml:invoke",), ("<｜tool_calls_begin｜>",)), reasoning="deepseek_r1")
