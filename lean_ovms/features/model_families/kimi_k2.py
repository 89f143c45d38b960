"""Kimi K2, between <|tool_calls_section_begin|> and <|tool_calls_section_end|>, any number of

<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
"""

from __future__ import annotations

import re

from ...grammar import formats
from ...grammar.call_syntax import CallForm, Tool
from ...types import Json
from .base import Enclosed, ModelFamily
from .call_forms import INDEX, function_name
from .json_calls import json_arguments
from .scanner import Steps, Tags
from .think_tags import ThinkTags

CALLS, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
END = "<|tool_call_end|>"
_NO_ARGUMENTS = Tags([END])
_ID = re.compile(r"[^<>{}\n]*")


class KimiK2Calls(Enclosed):
    """Reads calls that begin with an id, whose middle part is the name of the function.

    An id with an index is also the call's id in the answer, because the family's template writes the id, and no name,
    for earlier calls.
    """

    tags = (CALL, END)
    noise = (CALLS, CALLS_END, "<|tool_call_section_begin|>", "<|tool_call_section_end|>", "<|im_end|>")
    inside = (ARGUMENTS,)

    def enclosed(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        call_id = (yield from self.scanner.word(_ID)).strip()
        name = name_of(call_id)
        if not name or not (yield from self.scanner.literal(ARGUMENTS)):
            return False
        if (yield from self.scanner.space()) != "{" and (yield from self.scanner.ahead(_NO_ARGUMENTS)) <= 0:
            return False
        self.out.call(name, call_id if call_id.rpartition(":")[2].isdigit() else "")
        yield from json_arguments(self.out, self.out.arguments)
        return True


def name_of(call_id: str) -> str:
    """Returns the name of the function in an id: get_weather for functions.get_weather:0."""
    name, _, index = call_id.rpartition(":")
    if not name or not index.isdigit():
        name = call_id
    return name.removeprefix("functions.")


def _written(tool: Tool) -> Json:
    content = formats.sequence(INDEX, formats.text(ARGUMENTS), formats.json_value(tool.parameters))
    return formats.tag(f"{CALL}functions.{function_name(tool)}:", content, END)


KIMI_K2 = ModelFamily(
    tools=KimiK2Calls,
    thinking=ThinkTags.variant(breaks=(CALLS, CALL)),
    form=CallForm(one=_written, before=CALLS, after=CALLS_END, trigger=CALLS),
)
