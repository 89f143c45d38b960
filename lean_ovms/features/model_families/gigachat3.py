"""GigaChat 3: a tool call is a message of its own, and an answer has one at most.

content<|message_sep|>, two newlines, function call<|role_sep|>, a newline, {"name": …, "arguments": {…}}

GigaChat 3.1 writes <|function_call|> in place of everything between the content and the object.
"""

from __future__ import annotations

from ...grammar.call_syntax import CallForm
from .base import ModelFamily
from .call_forms import in_json
from .json_calls import JsonCalls
from .scanner import Steps

SEPARATOR, ROLE = "<|message_sep|>", "function call<|role_sep|>"
CALL = "<|function_call|>"


class GigaChatCalls(JsonCalls):
    """Reads a call object after the header of either version, for models of both versions."""

    tags = (SEPARATOR, ROLE, CALL)
    noise = ("</s>",)
    one_call = True

    def read(self, tag: str) -> Steps[bool]:
        if tag == SEPARATOR:
            yield from self.scanner.space()
            if not (yield from self.scanner.literal(ROLE)):
                return True  # the end of a message; what the model writes after it becomes content
        return (yield from super().read(tag))


GIGACHAT3 = ModelFamily(
    tools=GigaChatCalls,
    form=CallForm(one=in_json(around=(f"{SEPARATOR}\n\n{ROLE}\n", "")), trigger=SEPARATOR, alone=True),
)
GIGACHAT31 = ModelFamily(tools=GigaChatCalls, form=CallForm(one=in_json(around=(CALL, "")), trigger=CALL, alone=True))
