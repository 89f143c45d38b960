"""Jamba: <tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>"""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from .detection import THINK, Detection
from .json_calls import EnclosedJson


class Tools(EnclosedJson):
    """Calls in a list between <tool_calls> and </tool_calls>."""

    tags = ("<tool_calls>", "</tool_calls>")
    noise = ("<|eom|>", "<|endoftext|>")
    keep_special_tokens = True


FORM = CallForm(
    one=in_json(), before="<tool_calls>[\n    ", between=",\n    ", after="\n]</tool_calls>", trigger="<tool_calls>"
)

DETECTION = Detection(rank=160, marks=(("<tool_calls>",),), reasoning="qwen3", reasoning_marks=THINK)
