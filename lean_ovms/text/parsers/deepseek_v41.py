"""DeepSeek V4.1: V4's calls with a blank in each tag, <｜DSML｜ calls>."""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, xml_call
from . import deepseek_v32
from .detection import THINK, Detection

CALLS, CALLS_END = "<｜DSML｜ calls>", "</｜DSML｜ calls>"


class Tools(deepseek_v32.Tools):
    """Calls in DSML elements."""

    invoke = "<｜DSML｜ invoke name="
    tags = (CALLS, invoke, CALLS_END)
    keys: ClassVar = {"<｜DSML｜ parameter name=": ""}
    value_end = "</｜DSML｜ parameter>"
    value_breaks = ("\n<｜DSML｜ parameter name=", "\n</｜DSML｜ invoke>")
    ends = ("</｜DSML｜ invoke>", CALLS_END)


class Thinking(deepseek_v32.Thinking):
    """<think>reasoning</think>answer."""

    breaks = (CALLS,)


FORM = CallForm(
    one=xml_call(
        '<｜DSML｜ invoke name="NAME">\n',
        "</｜DSML｜ invoke>",
        '<｜DSML｜ parameter name="KEY" string="IS_TEXT">',
        "</｜DSML｜ parameter>\n",
    ),
    before=CALLS + "\n",
    between="\n",
    after="\n" + CALLS_END,
    trigger=CALLS,
)

DETECTION = Detection(rank=125, marks=(("｜DSML｜", " calls>"),), reasoning="deepseek_v41", reasoning_marks=THINK)
