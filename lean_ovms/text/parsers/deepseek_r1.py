"""DeepSeek R1 and models made from it: thinking from the first word on, up to </think>; the start tag is optional."""

from __future__ import annotations

from .base import Block


class Thinking(Block):
    """reasoning</think>answer, unless the prompt has closed the thinking."""

    start_tag = "<think>"
    end_tag = "</think>"

    @classmethod
    def opened(cls, prompt_tail: str) -> bool:
        return not prompt_tail.rstrip().endswith(cls.end_tag)
