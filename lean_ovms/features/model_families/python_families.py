"""The families whose calls are a list in Python's notation, [name(key='value', other=1), second()]."""

from __future__ import annotations

from typing import ClassVar

from ...grammar.call_syntax import CallForm
from .base import Enclosed, ModelFamily
from .call_forms import python_call
from .json_calls import JsonCalls
from .literals import lenient_text
from .python_calls import PythonCalls
from .scanner import Steps, Tags
from .think_tags import ThinkTags

_OBJECT = Tags(["{", "[{", "[\n{"])
"""The beginnings of calls in JSON."""


class PythonList(Enclosed, PythonCalls):
    """Reads calls in a list between tags."""

    bracket_needed: ClassVar[bool] = True
    """Whether text without the list's bracket is not a call."""

    def enclosed(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        return (yield from self.start())

    def start(self) -> Steps[bool]:
        if not (yield from self.scanner.literal("[")) and self.bracket_needed:
            return False
        return (yield from self.calls())


class PythonOrJson(PythonList):
    """Reads calls in a list in Python's notation or, if the client's instructions ask for it, of objects in JSON."""

    def prepare(self) -> None:
        self._objects = JsonCalls(self.out)

    def enclosed(self, tag: str) -> Steps[bool]:
        if (yield from self.scanner.ahead(_OBJECT)) > 0:
            return (yield from self._objects.calls())
        return (yield from super().enclosed(tag))


_LFM = {"noise": ("<|im_end|>", "<|endoftext|>")}

# LFM2, LFM2.5.
LFM2 = ModelFamily(
    tools=PythonOrJson.variant(
        tags=("<|tool_call_start|>", "<|tool_call_end|>"), decode=staticmethod(lenient_text), bare_words=True, **_LFM
    ),
    thinking=ThinkTags.variant(**_LFM),
    form=CallForm(
        one=python_call,
        before="<|tool_call_start|>[",
        between=", ",
        after="]<|tool_call_end|>",
        trigger="<|tool_call_start|>",
    ),
)
# OLMo 3: one call a line, or a list.
OLMO3 = ModelFamily(
    tools=PythonList.variant(tags=("<function_calls>", "</function_calls>"), bracket_needed=False),
    form=CallForm(
        one=python_call, before="<function_calls>", between="\n", after="</function_calls>", trigger="<function_calls>"
    ),
)
# Llama 4, ToolACE: the list is the whole answer, or stands between the tags.
PYTHONIC = ModelFamily(
    tools=PythonList.variant(
        tags=("<|python_start|>", "<|python_end|>"),
        noise=("<|eom|>", "<|eot|>", "<|eot_id|>", "<|end_of_text|>"),
        at_start=True,
    ),
    form=CallForm(one=python_call, before="[", between=", ", after="]"),
)
