"""Granite 3: <|tool_call|>[{"name": …, "arguments": {…}}, …], or <tool_call>, or the list as the whole answer."""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from .blocks import SpelledBlock
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


class Thinking(SpelledBlock):
    """Here is my thought process: reasoning Here is my response: content, as Granite 3.2 writes."""

    start_tag = "Here is my thought process:"
    end_tag = "Here is my response:"

    def pairs(self) -> dict[str, str]:
        return {self.start_tag: self.end_tag, "Here's my thought process:": "Here's my response:"}

    def loose_ends(self) -> tuple[str, ...]:
        return ()


FORM = CallForm(one=in_json(), before="<|tool_call|>[", between=", ", after="]", trigger="<|tool_call|>")

DETECTION = Detection(rank=180, marks=(("<|tool_call|>",),), reasoning="qwen3", reasoning_marks=THINK)
