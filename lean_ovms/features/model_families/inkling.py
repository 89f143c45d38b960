"""Inkling: blocks whose tags name their kind, each from <|message_model|> to <|end_message|>.

<|content_thinking|>reasoning   <|content_text|>content   <|content_invoke_tool_json|>{"name": …, "args": {…}}

The name of the function may stand before its block as well; the prompt ends with <|message_model|>.
"""

from __future__ import annotations

from ...grammar.call_syntax import CallForm
from .base import ModelFamily
from .call_forms import in_json
from .json_calls import JsonCalls
from .think_tags import ThinkTags

MESSAGE, END = "<|message_model|>", "<|end_message|>"
TEXT, CALL, THINK = "<|content_text|>", "<|content_invoke_tool_json|>", "<|content_thinking|>"
STOP = "<|content_model_end_sampling|>"
_NOISE = (MESSAGE, END, TEXT, STOP, "<|content_invoke_tool_text|>", "<|content_tool_error|>")
MAX_NAMES = 64
"""The most tools whose name is recognised before their block."""


class InklingCalls(JsonCalls):
    """Reads calls that are an object in a block of its own."""

    argument_keys = ("args", "arguments")
    noise = _NOISE
    answer_header = TEXT
    one_call = True

    def prepare(self) -> None:
        names = [*filter(None, self.out.parameters)][:MAX_NAMES]
        self.tags = (CALL, *(name + CALL for name in names if name[0] != "<"))


INKLING = ModelFamily(
    tools=InklingCalls,
    thinking=ThinkTags.variant(
        start_tag=THINK,
        end_tag=END,
        breaks=(MESSAGE, STOP),
        next_header=MESSAGE,
        noise=_NOISE,
        answer_header=TEXT,
    ),
    form=CallForm(one=in_json("name", "args", around=(CALL, END)), between=MESSAGE, trigger=CALL),
)
