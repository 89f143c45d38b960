"""LFM2 and LFM2.5: <|tool_call_start|>[name(key='value', other=1), second()]<|tool_call_end|>"""

from __future__ import annotations

from ...grammar.frames import CallForm, python_call
from .base import Block, Enclosed
from .detection import Detection
from .literals import lenient_text
from .python_calls import PythonCalls
from .scanner import Steps

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"
_NOISE = ("<|im_end|>", "<|endoftext|>")


class Tools(Enclosed, PythonCalls):
    """Calls in a list between LFM2's tags."""

    tags = (START, END)
    noise = _NOISE
    keep_special_tokens = True
    decode = staticmethod(lenient_text)
    bare_words = True

    def enclosed(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        if not (yield from self.scanner.literal("[")):
            return False
        return (yield from self.calls())


class Thinking(Block):
    """<think>reasoning</think>answer"""

    start_tag = "<think>"
    end_tag = "</think>"
    noise = _NOISE
    keep_special_tokens = True


FORM = CallForm(
    one=python_call,
    before="<|tool_call_start|>[",
    between=", ",
    after="]<|tool_call_end|>",
    trigger="<|tool_call_start|>",
)

DETECTION = Detection(
    rank=60,
    marks=(("<|assistant_tool_call|>",), ("<|tool_call_start|>",), ("keep_past_thinking",)),
    reasoning="lfm2",
    reasoning_marks=("message.thinking",),
)
