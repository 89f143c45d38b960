"""Llama 3: <|python_tag|>{"name": …, "parameters": {…}}; {…}, or such objects as the whole answer without the tag.

An answer that is other JSON, and code after <|python_tag|>, stay text.
"""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from .detection import Detection
from .json_calls import JsonCalls
from .scanner import Steps


class Tools(JsonCalls):
    """Calls after <|python_tag|>, or where an answer begins with {."""

    tags = ("<|python_tag|>",)
    noise = ("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>")
    keep_special_tokens = True
    at_start = True

    def read(self, tag: str) -> Steps[bool]:
        return (yield from self.calls())

    def start(self) -> Steps[bool]:
        if (yield from self.scanner.peek()) != "{":
            return False
        return (yield from self.calls(eager=False))


FORM = CallForm(one=in_json(arguments_key="parameters"), between="; ", trigger='{"name": "')

DETECTION = Detection(rank=100, marks=(("<|python_tag|>",),))
