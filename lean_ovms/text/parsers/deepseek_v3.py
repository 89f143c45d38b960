"""DeepSeek V3, and V3.1 too, between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>, any number of

V3:   <｜tool▁call▁begin｜>function<｜tool▁sep｜>name, and on lines of their own ```json, {…}, ```<｜tool▁call▁end｜>
V3.1: <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
"""

from __future__ import annotations

import re

from ...grammar.frames import CallForm, json_after
from .base import Enclosed
from .detection import THINK, Detection
from .json_arguments import json_arguments
from .scanner import Steps

CALL = "<｜tool▁call▁begin｜>"
SEPARATOR = "<｜tool▁sep｜>"
END = "<｜tool▁call▁end｜>"
_NAME = re.compile(r"[^<>`{}\n]*")


class Tools(Enclosed):
    """Calls in DeepSeek's own brackets."""

    tags = (CALL, END)
    noise = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>")
    keep_special_tokens = True

    def enclosed(self, tag: str) -> Steps[bool]:
        name = yield from self.scanner.word(_NAME)
        if not (yield from self.scanner.literal(SEPARATOR)):
            return False
        if (yield from self.scanner.peek()) not in "{ \n\t" and name == "function":  # V3: the kind of call
            name = yield from self.scanner.word(_NAME)
            yield from self.scanner.space()
            if not (yield from self.scanner.literal("```json")):
                return False
        if (yield from self.scanner.space()) != "{" or not name.strip():
            return False
        yield from self._arguments(name.strip())
        return True

    def _arguments(self, name: str) -> Steps[None]:
        self.out.call(name)
        if not (yield from json_arguments(self.out, self.out.arguments)):
            return
        yield from self.scanner.space()
        yield from self.scanner.literal("```")
        yield from self.scanner.space()


FORM = CallForm(
    one=json_after("<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>"),
    before="<｜tool▁calls▁begin｜>",
    between="\n",
    after="<｜tool▁calls▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
)

DETECTION = Detection(
    rank=130, marks=(("<｜tool▁calls▁begin｜>", "```json"),), reasoning="qwen3", reasoning_marks=THINK
)
