"""Granite 3: <|tool_call|>[{"name": …, "arguments": {…}}, …], or <tool_call>, or the list as the whole answer."""

from __future__ import annotations

from ..grammar.tool_calls import CallForm, in_json
from .detection import THINK, Detection
from .json_calls import EnclosedJson
from .scanner import Steps


class Tools(EnclosedJson):
    """Calls in a list after a tag, or where an answer begins with [{."""

    tags = ("<|tool_call|>", "<tool_call>", "</tool_call>")
    noise = ("<|end_of_text|>",)
    keep_special_tokens = True
    at_start = True

    def start(self) -> Steps[bool]:
        if not (yield from self.scanner.literal("[")) or (yield from self.scanner.space()) != "{":
            return False
        return (yield from self.calls(eager=False))


FORM = CallForm(one=in_json(), before="<|tool_call|>[", between=", ", after="]", trigger="<|tool_call|>")

DETECTION = Detection(rank=180, marks=(("<|tool_call|>",),), reasoning="qwen3", reasoning_marks=THINK)
