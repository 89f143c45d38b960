"""DeepSeek V3.2: values as they are, each with a note of whether it is a string; else it is JSON.

<｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">value
</｜DSML｜parameter>…</｜DSML｜invoke>…</｜DSML｜function_calls>
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from ...grammar.frames import CallForm, xml_call
from .base import Block
from .detection import THINK, Detection
from .invoke_calls import InvokeCalls
from .scanner import Steps
from .values import STRING

CALLS = "<｜DSML｜function_calls>"
CALLS_END = "</｜DSML｜function_calls>"
V4_CALLS = ("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>")
"""V4's name of the block, and two misspellings of it."""

END_OF_TEXT = "<｜end▁of▁sentence｜>"
CALL = xml_call(
    '<｜DSML｜invoke name="NAME">\n',
    "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="KEY" string="IS_TEXT">',
    "</｜DSML｜parameter>\n",
)
_NOTE = re.compile(r'[a-z="]*')


class Tools(InvokeCalls):
    """Calls in DSML elements. The schema decides what a value is; the note does where the schema leaves it open."""

    invoke = "<｜DSML｜invoke name="
    tags: tuple[str, ...] = (CALLS, invoke, CALLS_END)
    noise = (END_OF_TEXT,)
    keep_special_tokens = True
    keys: ClassVar = {"<｜DSML｜parameter name=": ""}
    value_end = "</｜DSML｜parameter>"
    value_breaks = ("\n<｜DSML｜parameter name=", "\n</｜DSML｜invoke>")
    ends: tuple[str, ...] = ("</｜DSML｜invoke>", CALLS_END)
    trim = False
    _note = ""

    def name(self, after: str) -> Steps[str]:
        if after == self.after_name:
            return (yield from super().name(after))
        if (yield from self.scanner.peek()) not in ('"', "'"):
            return ""
        name = yield from super().name("")
        yield from self.scanner.space()
        self._note = yield from self.scanner.word(_NOTE)
        yield from self.scanner.space()
        return name if (yield from self.scanner.literal(">")) else ""

    def kinds(self, schema: Any) -> frozenset[str]:
        kinds = super().kinds(schema)
        return STRING if self._note == 'string="true"' and (not kinds or "string" in kinds) else kinds


class Thinking(Block):
    """<think>reasoning</think>answer. A call ends the thinking too."""

    start_tag = "<think>"
    end_tag = "</think>"
    breaks: ClassVar[tuple[str, ...]] = (CALLS, *V4_CALLS)
    noise = (END_OF_TEXT,)


FORM = CallForm(one=CALL, before=CALLS + "\n", between="\n", after="\n" + CALLS_END, trigger=CALLS)

DETECTION = Detection(
    rank=126, marks=(("｜DSML｜", "function_calls>"),), reasoning="deepseek_v32", reasoning_marks=THINK
)
