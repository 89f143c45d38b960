"""MiniCPM 5: <function name="NAME"><param name="KEY">value</param>…</function>.

A value may be a CDATA section. KEY may stand in single quotes.
"""

from __future__ import annotations

from typing import ClassVar

from ...grammar.frames import CallForm, xml_call
from .base import Block
from .detection import Detection
from .scanner import Steps
from .xml_calls import XmlCalls

_NOISE = ("<s>", "</s>", "<|im_end|>")


class Tools(XmlCalls):
    """Calls in function elements."""

    tags = ('<function name="',)
    noise = _NOISE
    keep_special_tokens = True
    keys: ClassVar = {'<param name="': '">', "<param name='": "'>"}
    after_name = '">'
    value_end = "</param>"
    ends = ("</function>",)
    cdata = True
    python = True

    def read(self, tag: str) -> Steps[bool]:
        return (yield from self.call())


class Thinking(Block):
    """<think>reasoning</think>answer"""

    start_tag = "<think>"
    end_tag = "</think>"
    noise = (*_NOISE, "</think>")
    keep_special_tokens = True


FORM = CallForm(
    one=xml_call('<function name="NAME">', "</function>", '<param name="KEY">', "</param>"),
    between="\n",
    trigger='<function name="',
)

DETECTION = Detection(rank=50, marks=(('<param name="',),), reasoning="minicpm5")
