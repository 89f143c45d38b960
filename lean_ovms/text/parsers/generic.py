"""Any chat model without a notation of its own that is known: <tool_call>{"name": …, "arguments": {…}}</tool_call>.

The prompt has an example of it where the chat template shows no tools, and grammars write it. Models that were never
trained for it also write the objects, or a list of them, as the whole answer or in a fence: read where they name a tool
of the request. A small model writes blanks or further calls until it is cut: its calls are in one line, and one an
answer where the client does not ask for several.
"""

from __future__ import annotations

from ...grammar import formats
from ...grammar.call_syntax import CallForm, in_json
from .base import ModelFamily
from .json_calls import FENCE, EnclosedOrOffered

FAMILIES = {
    "generic": ModelFamily(
        tools=EnclosedOrOffered.variant(tags=(FENCE, "<tool_call>", "</tool_call>"), keep_special_tokens=True),
        form=CallForm(
            one=in_json(around=("<tool_call>\n", "\n</tool_call>"), style=formats.ONE_LINE),
            between="\n",
            trigger="<tool_call>",
            single=True,
        ),
    )
}
