"""Calls of Hermes, Qwen2.5 and Qwen3: <tool_call>{"name": …, "arguments": {…}}</tool_call>.

This is also the notation for any chat model without a known one of its own. If its chat template does not show tools,
the prompt gets an example, and grammars enforce the notation. Models that were not trained for it also write the
objects, or a list of them, as the whole answer or in a code fence; these are read if they name a tool of the request.
Small models write white space or further calls until they are cut off. So calls are enforced to be on one line, and
there is only one in an answer unless the client asks for several.
"""

from __future__ import annotations

from ...grammar import formats
from ...grammar.call_syntax import CallForm
from .base import FENCE, ModelFamily
from .call_forms import in_json
from .json_calls import EnclosedOrOffered

_TAGS = (FENCE, "<tool_call>", "</tool_call>")
_AROUND = ("<tool_call>\n", "\n</tool_call>")

# Several objects, or a list of them, may stand between one pair of tags.
HERMES3 = ModelFamily(
    tools=EnclosedOrOffered.variant(tags=_TAGS),
    form=CallForm(one=in_json(around=_AROUND), between="\n", trigger="<tool_call>"),
)
GENERIC = ModelFamily(
    tools=EnclosedOrOffered.variant(tags=_TAGS),
    form=CallForm(
        one=in_json(around=_AROUND, style=formats.ONE_LINE), between="\n", trigger="<tool_call>", single=True
    ),
)
