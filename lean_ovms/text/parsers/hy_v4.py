"""Hunyuan 4: Hunyuan 3's calls without <tool_sep> and without newlines between the tags."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ...grammar.frames import CallForm, OutputForm, xml_call
from . import hy_v3
from .detection import Detection


class Tools(hy_v3.Tools):
    """Reads what Hunyuan 3 writes too."""


class Thinking(hy_v3.Thinking):
    """<think>reasoning</think>answer."""


@cache
def call_form(suffix: str) -> CallForm:
    """How calls are written with this suffix."""
    return CallForm(
        one=xml_call(
            f"<tool_call{suffix}>NAME",
            f"</tool_call{suffix}>",
            f"<arg_key{suffix}>KEY</arg_key{suffix}><arg_value{suffix}>",
            f"</arg_value{suffix}>",
        ),
        before=f"<tool_calls{suffix}>",
        after=f"</tool_calls{suffix}>",
        trigger=f"<tool_calls{suffix}>",
    )


FORM = call_form("")


def adapted(form: OutputForm, prompt_tail: str) -> OutputForm:
    """The form with the suffix of the model that the prompt is for."""
    suffix = hy_v3.suffix_of(prompt_tail)
    spelled = hy_v3.adapted(form, prompt_tail)
    return replace(spelled, calls=call_form(suffix)) if suffix and form.calls is FORM else spelled


DETECTION = Detection(
    rank=54, marks=(("arg_key", "tool_calls", "｜hy_"), ("arg_key", "tool_calls", "hy_Assistant")), reasoning="hy_v4"
)
