"""Seed-OSS: Qwen3-Coder's calls and thinking between tags of its own.

<seed:think>reasoning</seed:think>answer, with notes on its budget of tokens in the reasoning, and
<seed:tool_call><function=NAME><parameter=KEY>value</parameter>…</function></seed:tool_call>
"""

from __future__ import annotations

from ...grammar.frames import CallForm, xml_call
from . import qwen3coder
from .base import Block
from .detection import Detection

OUTER = "<seed:tool_call>"
OUTER_END = "</seed:tool_call>"
_NOISE = ("<seed:bos>", "<seed:eos>")


class Tools(qwen3coder.Tools):
    """Calls in function elements."""

    tags = (OUTER, qwen3coder.FUNCTION, OUTER_END)
    noise = _NOISE
    keep_special_tokens = True
    ends = ("</function>", OUTER_END)


class Thinking(Block):
    """<seed:think>reasoning</seed:think>answer. A call without an end of the thinking before it ends it too.

    What the model notes about its budget, between tags of their own, is a part of the reasoning.
    """

    start_tag = "<seed:think>"
    end_tag = "</seed:think>"
    call_tag = OUTER
    noise = _NOISE
    keep_special_tokens = True


FORM = CallForm(
    one=xml_call(OUTER + "\n<function=NAME>\n", "</function>\n" + OUTER_END, "<parameter=KEY>", "</parameter>\n"),
    between="\n",
    trigger=OUTER,
)

# Before qwen3coder: the same elements between other tags.
DETECTION = Detection(rank=35, marks=((OUTER,), ("<seed:think>",)), reasoning="seed_oss")
