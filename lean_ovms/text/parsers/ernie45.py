"""ERNIE 4.5: Hermes' calls, and after the reasoning an answer between <response> and </response>.

As with DeepSeek R1 the start tag of the reasoning is optional.
"""

from __future__ import annotations

from .answer_block import AnswerBlock
from .deepseek_r1 import Thinking as ThinkingFirst
from .detection import Detection
from .hermes3 import FORM, Tools

__all__ = ["DETECTION", "FORM", "Thinking", "Tools"]


class Thinking(AnswerBlock):
    """reasoning</think><response>content</response>, unless the prompt has closed the thinking."""

    start_tag = "<think>"
    end_tag = "</think>"
    call_tag = "<tool_call>"
    answer_start = "<response>"
    answer_end = "</response>"
    noise = ("</s>", "<|im_end|>")
    keep_special_tokens = True

    @classmethod
    def opened(cls, prompt_tail: str) -> bool:
        return ThinkingFirst.opened(prompt_tail)


# Before hermes3: the same tags around calls.
DETECTION = Detection(
    rank=115, marks=(("<tool_call>", "<response>"), ("<global_setting>", "think_mode")), reasoning="ernie45"
)
