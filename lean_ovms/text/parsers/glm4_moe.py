"""GLM-4.5 and later: values as bare text, typed by the tool's schema.

<tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>value</arg_value>…</tool_call>
"""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, xml_call
from .detection import THINK, Detection
from .key_value_calls import KeyValueCalls
from .scanner import Steps


class Tools(KeyValueCalls):
    """Calls between <tool_call> and </tool_call>."""

    tags = ("<tool_call>",)
    noise = ("<|observation|>", "<|user|>", "<|endoftext|>")
    keep_special_tokens = True
    keys: ClassVar = {"<arg_key>": "</arg_key>"}
    value_end = "</arg_value>"
    ends = ("</tool_call>",)

    def read(self, tag: str) -> Steps[bool]:
        return (yield from self.call())


FORM = CallForm(
    one=xml_call("<tool_call>NAME\n", "</tool_call>", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"),
    between="\n",
    trigger="<tool_call>",
)

# Beyond OVMS, and before hermes3: the same tags with another format inside.
DETECTION = Detection(rank=110, marks=(("<tool_call>", "<arg_key>"),), reasoning="qwen3", reasoning_marks=THINK)
