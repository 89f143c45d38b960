"""Qwen3 and the many models that think between <think> and </think>."""

from __future__ import annotations

from .base import Block
from .detection import THINK, Detection


class Thinking(Block):
    """<think>reasoning</think>answer. A call without an end of the thinking before it ends the thinking too."""

    start_tag = "<think>"
    end_tag = "</think>"
    call_tag = "<tool_call>"


DETECTION = Detection(rank=1000, marks=tuple((mark,) for mark in THINK), reasoning="qwen3")
