"""Phi-4 mini: functools[{"name": …, "arguments": {…}}, …], or <|tool_call|>[…]<|/tool_call|> as Microsoft writes it."""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from .detection import Detection
from .json_calls import JsonCalls
from .scanner import Steps


class Tools(JsonCalls):
    """Calls in a list after functools; the word alone is text."""

    tags = ("functools", "<|tool_call|>")
    noise = ("<|/tool_call|>", "<|end|>", "<|endoftext|>")
    keep_special_tokens = True

    def read(self, tag: str) -> Steps[bool]:
        if (yield from self.scanner.space()) != "[":
            return False
        return (yield from self.calls())


FORM = CallForm(one=in_json(), before="functools[", between=", ", after="]", trigger="functools[")

DETECTION = Detection(rank=70, marks=(("functools",),))
