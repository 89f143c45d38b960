"""dots.llm: <dots_function_call><invoke name="NAME"><parameter name="KEY">value</parameter>…</invoke>…
</dots_function_call>, or call objects in JSON between the same tags.
"""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, xml_call
from .base import CombinedParser
from .detection import Detection
from .invoke_calls import InvokeCalls
from .json_calls import JsonCalls
from .scanner import Steps

CALLS, CALLS_END = "<dots_function_call>", "</dots_function_call>"


class Tools(InvokeCalls):
    """Calls in a block."""

    invoke = "<invoke name="
    tags = (CALLS, invoke, CALLS_END)
    keep_special_tokens = True
    keys: ClassVar = {"<parameter name=": ">"}
    value_end = "</parameter>"
    value_breaks = ("\n<parameter name=", "\n</invoke>")
    ends = ("</invoke>", CALLS_END)
    trim = False

    def __init__(self, out: CombinedParser, *, tools: bool = False, thinking: bool = False) -> None:
        super().__init__(out, tools=tools, thinking=thinking)
        self._objects = JsonCalls(out)

    def read(self, tag: str) -> Steps[bool]:
        if tag == CALLS and (yield from self.scanner.space()) == "{":
            self._open = yield from self._objects.calls()
            return self._open
        return (yield from super().read(tag))


FORM = CallForm(
    one=xml_call('<invoke name="NAME">\n', "</invoke>", '<parameter name="KEY">', "</parameter>\n"),
    before=CALLS + "\n",
    between="\n",
    after="\n" + CALLS_END,
    trigger=CALLS,
)

DETECTION = Detection(rank=193, marks=((CALLS,),), reasoning="qwen3", reasoning_marks=("<think>", "</think>"))
