"""PLaMo 3, between <|plamo:begin_tool_requests:plamo|> and its end, any number of

begin_tool_request, begin_tool_name, NAME, end_tool_name, begin_tool_arguments, <|plamo:constrain|>json<|plamo:msg|>,
{…}, end_tool_arguments, end_tool_request, each word between <|plamo: and :plamo|>. Reasoning: begin_think … end_think.
"""

from __future__ import annotations

import re

from ...grammar.call_syntax import CallForm
from .base import ModelFamily, Syntax
from .call_forms import arguments_after
from .json_calls import json_arguments
from .scanner import Steps
from .think_tags import ThinkTags


def _tag(word: str) -> str:
    return f"<|plamo:{word}:plamo|>"


CALLS, CALLS_END = _tag("begin_tool_requests"), _tag("end_tool_requests")
CALL, CALL_END = _tag("begin_tool_request"), _tag("end_tool_request")
NAME, NAME_END = _tag("begin_tool_name"), _tag("end_tool_name")
ARGUMENTS = _tag("begin_tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>"
ARGUMENTS_END = _tag("end_tool_arguments")
THINK, THINK_END = _tag("begin_think"), _tag("end_think")
_END = "<|plamo:tag|>"
_IN_NAME = re.compile(r"[^<>{}\n]*")


class PlamoCalls(Syntax):
    """Reads calls with a name and JSON arguments."""

    tags = (CALL,)
    noise = (CALLS, CALLS_END, CALL_END, ARGUMENTS_END, _END)
    inside = (NAME, NAME_END, ARGUMENTS)

    def read(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        if not (yield from self.scanner.literal(NAME)):
            return False
        name = (yield from self.scanner.word(_IN_NAME)).strip()
        if not name or not (yield from self.scanner.literal(NAME_END)):
            return False
        yield from self.scanner.space()
        if not (yield from self.scanner.literal(ARGUMENTS)):
            return False
        yield from self.scanner.space()
        self.out.call(name)
        yield from json_arguments(self.out, self.out.arguments)
        return True


PLAMO3 = ModelFamily(
    tools=PlamoCalls,
    thinking=ThinkTags.variant(start_tag=THINK, end_tag=THINK_END, breaks=(CALLS,), noise=(THINK_END, _END)),
    form=CallForm(
        one=arguments_after(f"{CALL}{NAME}NAME{NAME_END}{ARGUMENTS}", ARGUMENTS_END + CALL_END),
        before=CALLS,
        after=CALLS_END,
        trigger=CALLS,
    ),
)
