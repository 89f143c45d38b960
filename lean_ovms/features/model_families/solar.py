"""Solar Open: an answer consists of messages, which begin with <|begin|>assistant, as the prompt's end does.

<|think|>reasoning<|end|>   <|content|>content<|end|>
<|tool_calls|><|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{…}<|tool_call:end|>…<|calls|>

Solar Open 2: <|think:start|>reasoning<|think:end|>content, and then any number of

<|tool_call:start|>NAME
<|tool_arg:start|>KEY<|tool_arg:value|>value<|tool_arg:end|>…
<|tool_call:end|>
"""

from __future__ import annotations

import re

from ...grammar import formats
from ...grammar.call_syntax import CallForm, Tool
from ...types import Json
from .base import Enclosed, ModelFamily
from .call_forms import function_name, xml_call
from .json_calls import json_arguments
from .scanner import Steps
from .think_tags import ThinkTags
from .xml_calls import XmlCalls

MESSAGE, CONTENT, CALLS = "<|begin|>assistant", "<|content|>", "<|tool_calls|>"
CALL, NAME, ARGUMENTS, CALL_END = (f"<|tool_call:{part}|>" for part in ("begin", "name", "args", "end"))
CALL2, CALL2_END, THINK2_END = "<|tool_call:start|>", "<|tool_call:end|>", "<|think:end|>"
_NOISE = (MESSAGE, CONTENT, CALLS, "<|calls|>", "<|end|>", "<|flush|>")
_NOISE2 = ("<|im:end|>",)
_WORD = re.compile(r"[\w.\-]*")


class SolarCalls(Enclosed):
    """Reads calls with an id, which is also the call's id in the answer, because the template writes it again."""

    tags = (CALL, CALL_END)
    noise = _NOISE
    inside = (NAME, ARGUMENTS)
    answer_header = CONTENT

    def enclosed(self, tag: str) -> Steps[bool]:
        call_id = yield from self.scanner.word(_WORD)
        if not (yield from self.scanner.literal(NAME)):
            return False
        name = yield from self.scanner.word(_WORD)
        if not name or not (yield from self.scanner.literal(ARGUMENTS)):
            return False
        self.out.call(name, call_id)
        yield from json_arguments(self.out, self.out.arguments)
        return True


def _written(tool: Tool) -> Json:
    head = formats.text(f"{NAME}{function_name(tool)}{ARGUMENTS}")
    return formats.tag(
        CALL, formats.sequence(formats.regex("[a-z0-9]{10}"), head, formats.json_value(tool.parameters)), CALL_END
    )


SOLAR_OPEN = ModelFamily(
    tools=SolarCalls,
    thinking=ThinkTags.variant(
        start_tag="<|think|>",
        end_tag="<|end|>",
        breaks=(MESSAGE, CONTENT, CALLS),
        next_header=MESSAGE,
        noise=_NOISE,
        answer_header=CONTENT,
    ),
    form=CallForm(one=_written, before=CALLS, trigger=CALLS),
)
SOLAR_OPEN2 = ModelFamily(
    tools=XmlCalls.variant(
        tags=(CALL2,),
        noise=_NOISE2,
        keys={"<|tool_arg:start|>": "<|tool_arg:value|>"},
        after_name="\n",
        value_end="<|tool_arg:end|>",
        ends=(CALL2_END,),
        trim=False,
    ),
    thinking=ThinkTags.variant(
        start_tag="<|think:start|>",
        end_tag=THINK2_END,
        breaks=(CALL2,),
        noise=(*_NOISE2, THINK2_END),
    ),
    form=CallForm(
        one=xml_call(f"{CALL2}NAME\n", CALL2_END, "<|tool_arg:start|>KEY<|tool_arg:value|>", "<|tool_arg:end|>\n"),
        between="\n",
        trigger=CALL2,
    ),
)
