"""OLMo 3: <function_calls>, one name(key="value") a line, </function_calls>."""

from __future__ import annotations

from ...grammar.frames import CallForm, python_call
from .base import Enclosed
from .detection import THINK, Detection
from .python_calls import PythonCalls
from .scanner import Steps

START = "<function_calls>"
END = "</function_calls>"


class Tools(Enclosed, PythonCalls):
    """Calls between the tags; a list of them too."""

    tags = (START, END)

    def enclosed(self, tag: str) -> Steps[bool]:
        yield from self.scanner.space()
        yield from self.scanner.literal("[")
        return (yield from self.calls())


FORM = CallForm(
    one=python_call, before="<function_calls>", between="\n", after="</function_calls>", trigger="<function_calls>"
)

DETECTION = Detection(rank=170, marks=(("<function_calls>",),), reasoning="qwen3", reasoning_marks=THINK)
