"""DeepSeek V3 and V3.1, between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>, any number of

V3:   <｜tool▁call▁begin｜>function<｜tool▁sep｜>name, and on lines of their own ```json, {…}, ```<｜tool▁call▁end｜>
V3.1: <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
"""

from __future__ import annotations

import re

from ...grammar.call_syntax import CallForm
from .base import Enclosed, ModelFamily
from .call_forms import arguments_after
from .json_calls import json_arguments
from .scanner import Steps, Tags

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL = "<｜tool▁call▁begin｜>"
SEPARATOR = "<｜tool▁sep｜>"
END = "<｜tool▁call▁end｜>"
_NO_ARGUMENTS = Tags([END])
_NAME = re.compile(r"[^<>`{}\n]*")


class DeepSeekCalls(Enclosed):
    """Reads calls of both versions, whichever version the family is."""

    tags = (CALL, END)
    noise = (CALLS, CALLS_END, "<｜end▁of▁sentence｜>")
    inside = (SEPARATOR,)

    def enclosed(self, tag: str) -> Steps[bool]:
        name = yield from self.scanner.word(_NAME)
        if not (yield from self.scanner.literal(SEPARATOR)):
            return False
        if (yield from self.scanner.peek()) not in "{ \n\t" and name == "function":  # V3: the kind of call
            name = yield from self.scanner.word(_NAME)
            yield from self.scanner.space()
            if not (yield from self.scanner.literal("```json")):
                return False
        if not name.strip():
            return False
        if (yield from self.scanner.space()) != "{" and (yield from self.scanner.ahead(_NO_ARGUMENTS)) <= 0:
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


DEEPSEEK_V3 = ModelFamily(
    tools=DeepSeekCalls,
    form=CallForm(
        one=arguments_after(f"{CALL}function{SEPARATOR}NAME\n```json\n", f"\n```{END}"),
        before=CALLS,
        between="\n",
        after=CALLS_END,
        trigger=CALLS,
    ),
)
DEEPSEEK_V31 = ModelFamily(
    tools=DeepSeekCalls,
    form=CallForm(one=arguments_after(f"{CALL}NAME{SEPARATOR}", END), before=CALLS, after=CALLS_END, trigger=CALLS),
)
