"""DeepSeek V4: V3.2's calls in a block of another name, <｜DSML｜tool_calls>."""

from __future__ import annotations

from ...grammar.frames import CallForm
from . import deepseek_v32
from .detection import THINK, Detection

CALLS_END = "</｜DSML｜tool_calls>"


class Tools(deepseek_v32.Tools):
    """Calls in DSML elements."""

    tags = (*deepseek_v32.V4_CALLS, deepseek_v32.Tools.invoke, CALLS_END)
    ends = ("</｜DSML｜invoke>", CALLS_END)


class Thinking(deepseek_v32.Thinking):
    """<think>reasoning</think>answer."""


FORM = CallForm(
    one=deepseek_v32.CALL,
    before="<｜DSML｜tool_calls>\n",
    between="\n",
    after="\n" + CALLS_END,
    trigger="<｜DSML｜tool_calls>",
)

DETECTION = Detection(rank=127, marks=(("｜DSML｜", "tool_calls>"),), reasoning="deepseek_v4", reasoning_marks=THINK)
