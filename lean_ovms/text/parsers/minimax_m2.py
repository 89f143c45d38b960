"""MiniMax M2: values as they are, typed by the tool's schema.

<minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter>…</invoke>…</minimax:tool_call>
"""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, xml_call
from . import deepseek_r1
from .detection import Detection
from .invoke_calls import InvokeCalls

CALLS = "<minimax:tool_call>"
CALLS_END = "</minimax:tool_call>"
_NOISE = ("[e~[",)


class Tools(InvokeCalls):
    """Calls between <minimax:tool_call> and its end."""

    invoke = "<invoke name="
    tags = (CALLS, invoke, CALLS_END)
    noise = _NOISE
    keep_special_tokens = True
    keys: ClassVar = {"<parameter name=": ">"}
    value_end = "</parameter>"
    value_breaks = ("\n<parameter name=", "\n</invoke>")
    ends = ("</invoke>", CALLS_END)
    trim = False


class Thinking(deepseek_r1.Thinking):
    """reasoning</think>answer: the template begins the thinking. A call ends it too."""

    breaks = (CALLS,)
    noise = _NOISE
    keep_special_tokens = True


FORM = CallForm(
    one=xml_call('<invoke name="NAME">\n', "</invoke>", '<parameter name="KEY">', "</parameter>\n"),
    before=CALLS + "\n",
    between="\n",
    after="\n" + CALLS_END,
    trigger=CALLS,
)

DETECTION = Detection(rank=192, marks=((CALLS,),), reasoning="minimax_m2")
