"""FunctionGemma: <start_function_call>call:NAME{key:<escape>text<escape>,n:1}<end_function_call>, repeated.

Gemma 4's notation with other tags. A value between <escape> need not be a string: the tool's schema says what it is.
"""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, in_notation
from . import gemma4
from .detection import Detection
from .scanner import Steps, Tags
from .values import STRING, kinds_of, quoted, typed

START, END = "<start_function_call>", "<end_function_call>"


class Tools(gemma4.Tools):
    """Calls between FunctionGemma's tags."""

    tags = (START, END)
    noise = ("<start_function_response>", "<end_of_turn>", "<eos>")
    quote: ClassVar[Tags] = Tags(["<escape>"])

    def _string(self, *, key: bool) -> Steps[bool]:
        kinds = kinds_of(self._schemas.get(self._word)) if len(self._closers) == 1 else STRING
        if key or kinds == STRING:
            return (yield from super()._string(key=key))
        pieces: list[str] = []
        whole = bool((yield from self.scanner.until(self.quote, pieces.append)))
        text = "".join(pieces)
        self.out.arguments(typed(text, kinds) if whole else quoted(text)[:-1])
        return whole


FORM = CallForm(one=in_notation(f"{START}call:NAME", END, "functiongemma"), trigger=START)

DETECTION = Detection(rank=33, marks=((START,),))
