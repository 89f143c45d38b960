"""Qwen3 and the many models that think between <think> and </think>."""

from __future__ import annotations

from .base import Block


class Thinking(Block):
    """<think>reasoning</think>answer"""

    start_tag = "<think>"
    end_tag = "</think>"
