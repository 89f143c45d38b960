"""Calls as Hermes, Qwen2.5 and Qwen3 write them, <tool_call>{"name": …, "arguments": {…}}</tool_call>.

So does any chat model without a notation of its own that is known. Its prompt has an example where the chat template
shows no tools, and grammars write it. Models that were never trained for it also write the objects, or a list of them,
as the whole answer or in a fence: read where they name a tool of the request. A small model writes blanks or further
calls until it is cut: its calls are in one line, and one an answer where the client does not ask for several.
"""

from __future__ import annotations

from ...grammar import formats
from ...grammar.call_syntax import CallForm, in_json
from .base import ModelFamily
from .json_calls import FENCE, EnclosedOrOffered

_TAGS = (FENCE, "<tool_call>", "</tool_call>")
_AROUND = ("<tool_call>\n", "\n</tool_call>")

# Several objects, or a list of them, may stand between one pair of tags.
HERMES3 = ModelFamily(
    tools=EnclosedOrOffered.variant(tags=_TAGS),
    form=CallForm(one=in_json(around=_AROUND), between="\n", trigger="<tool_call>"),
)
GENERIC = ModelFamily(
    tools=EnclosedOrOffered.variant(tags=_TAGS, keep_special_tokens=True),
    form=CallForm(
        one=in_json(around=_AROUND, style=formats.ONE_LINE), between="\n", trigger="<tool_call>", single=True
    ),
)
