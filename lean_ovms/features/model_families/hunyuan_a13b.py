"""Hunyuan A13B: <tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>, outside or inside <answer>.

Reasoning: <think>, a newline, the text, </think>, and then the answer between <answer> and </answer>. The template for
tools has the model begin an answer without calls with the word "assistant" in Chinese; it is dropped.
"""

from __future__ import annotations

from ...grammar.call_syntax import CallForm
from .base import ModelFamily
from .call_forms import in_json
from .json_calls import EnclosedJson
from .scanner import Steps
from .think_forms import ThinkThenAnswer

ASSISTANT = "\u52a9\u624b\uff1a"
_NOISE = ("<|eos|>", "<|endoftext|>")


class HunyuanCalls(EnclosedJson):
    """Reads calls in a list between <tool_calls> and </tool_calls>."""

    tags = ("<tool_calls>", ASSISTANT, "</tool_calls>")
    noise = _NOISE
    at_start = True
    _addressed = False

    def enclosed(self, tag: str) -> Steps[bool]:
        return tag != ASSISTANT and (yield from super().enclosed(tag))

    def start(self) -> Steps[bool]:
        if self._addressed or not (yield from self.scanner.literal(ASSISTANT)):
            return False
        self._addressed = True
        return True


HUNYUAN_A13B = ModelFamily(
    tools=HunyuanCalls,
    thinking=ThinkThenAnswer.variant(answer_start="<answer>", answer_end="</answer>", noise=(*_NOISE, "</think>")),
    form=CallForm(one=in_json(), before="<tool_calls>[", between=", ", after="]</tool_calls>", trigger="<tool_calls>"),
)
