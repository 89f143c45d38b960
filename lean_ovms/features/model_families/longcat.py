"""LongCat-Flash, between <longcat_tool_call> and </longcat_tool_call>, either of

{"name": …, "arguments": {…}}
NAME
<longcat_arg_key>KEY</longcat_arg_key>
<longcat_arg_value>value</longcat_arg_value>…

The second is newer. Reasoning: <longcat_think>…</longcat_think>.
"""

from __future__ import annotations

from ...grammar.call_syntax import CallForm
from .base import ModelFamily
from .call_forms import in_json
from .key_value_calls import KeyValueCalls, KeyValueOrJson
from .think_tags import ThinkTags

CALL, CALL_END = "<longcat_tool_call>", "</longcat_tool_call>"
THINK = "<longcat_think>"
_NOISE = ("</longcat_s>",)

LONGCAT = ModelFamily(
    tools=KeyValueOrJson.variant(
        tags=(CALL, CALL_END),
        noise=_NOISE,
        elements=KeyValueCalls.variant(
            tags=(CALL,),
            keys={"<longcat_arg_key>": "</longcat_arg_key>"},
            value_end="</longcat_arg_value>",
            ends=(CALL_END,),
        ),
    ),
    thinking=ThinkTags.variant(start_tag=THINK, end_tag="</longcat_think>", breaks=(CALL,), noise=_NOISE),
    form=CallForm(one=in_json(around=(CALL + "\n", "\n" + CALL_END)), between="\n", trigger=CALL),
)
