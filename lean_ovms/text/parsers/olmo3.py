"""OLMo 3: <function_calls>, one name(key="value") a line, </function_calls>."""

from __future__ import annotations

from ..grammar.tool_calls import CallForm, python_call
from .python_calls import PythonCalls
from .scanner import Steps

START = "<function_calls>"
END = "</function_calls>"


class Tools(PythonCalls):
    """Calls between the tags; a list of them too."""

    tags = (START, END)
    _open = False

    def read(self, tag: str) -> Steps[bool]:
        if tag == END:
            was_open, self._open = self._open, False
            return was_open
        yield from self.scanner.space()
        yield from self.scanner.literal("[")
        self._open = yield from self.calls()
        return self._open


FORM = CallForm(
    one=python_call, before="<function_calls>", between="\n", after="</function_calls>", trigger="<function_calls>"
)
