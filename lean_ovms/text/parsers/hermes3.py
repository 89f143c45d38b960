"""Hermes, Qwen2.5, Qwen3: <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated.

Beyond the plain form it takes several objects, or a list of them, between one pair of tags, and a missing end tag.
"""

from __future__ import annotations

from ...grammar.frames import CallForm, in_json
from .detection import THINK, Detection
from .json_calls import EnclosedJson


class Tools(EnclosedJson):
    """Calls between <tool_call> and </tool_call>."""

    tags = ("<tool_call>", "</tool_call>")


FORM = CallForm(one=in_json(around=("<tool_call>\n", "\n</tool_call>")), between="\n", trigger="<tool_call>")

DETECTION = Detection(rank=120, marks=(("<tool_call>", "</tool_call>"),), reasoning="qwen3", reasoning_marks=THINK)
