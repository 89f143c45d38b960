"""Granite 20B for function calling: <function_call> {"name": …, "arguments": {…}}, repeated, without an end tag."""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from .detection import Detection
from .json_calls import JsonCalls
from .scanner import Steps


class Tools(JsonCalls):
    """A call after each tag."""

    tags = ("<function_call>",)
    noise = ("<|endoftext|>",)
    keep_special_tokens = True

    def read(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        return (yield from self.call())


FORM = CallForm(one=in_json(around=("<function_call> ", "")), trigger="<function_call>")

DETECTION = Detection(rank=185, marks=(("<|function_call_library|>",),))
