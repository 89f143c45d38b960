"""MiniMax M2 with its thinking in the content: <think>reasoning</think>answer, for clients that want it so."""

from __future__ import annotations

from ...grammar.frames import ReasoningForm
from . import minimax_m2
from .base import Syntax
from .scanner import Steps


class Thinking(Syntax):
    """Shows the start tag that stands at the end of the prompt; everything else passes as it is."""

    start_tag = "<think>"
    noise = minimax_m2.Thinking.noise
    keep_special_tokens = True

    def resume(self) -> Steps[None]:
        if (yield from self.scanner.peek()):
            self.out.text(self.start_tag)

    @classmethod
    def reasoning_form(cls) -> ReasoningForm:
        return ReasoningForm(start=cls.start_tag, end=minimax_m2.Thinking.end_tag, opened=cls.opened)
