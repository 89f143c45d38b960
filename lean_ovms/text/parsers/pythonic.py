"""Llama 4, ToolACE: [name(key='value'), second()] as the whole answer, or in <|python_start|> … <|python_end|>."""

from __future__ import annotations

from ...grammar.frames import CallForm, python_call
from .base import Enclosed
from .python_calls import PythonCalls
from .scanner import Steps

START = "<|python_start|>"
END = "<|python_end|>"


class Tools(Enclosed, PythonCalls):
    """Calls in a list where an answer begins."""

    tags = (START, END)
    noise = ("<|eom|>", "<|eot|>", "<|eot_id|>", "<|end_of_text|>")
    keep_special_tokens = True
    at_start = True

    def enclosed(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        return (yield from self.start())

    def start(self) -> Steps[bool]:
        if not (yield from self.scanner.literal("[")):
            return False
        return (yield from self.calls())


FORM = CallForm(one=python_call, before="[", between=", ", after="]")
