"""K2 Horizon, between <ifm|tool_calls> and </ifm|tool_calls>, any number of

<ifm|tool_call>NAME<ifm|arg_key>KEY</ifm|arg_key><ifm|arg_value>value</ifm|arg_value>…</ifm|tool_call>

With certain variables of the template, <ifm|arg_type>TYPE</ifm|arg_type> precedes a value, or a call object in JSON is
between the tags. Reasoning: <ifm|think>…</ifm|think>, or think_fast or think_faster by the effort.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

from ...grammar.call_syntax import CallForm, OutputForm
from .base import ModelFamily
from .call_forms import xml_call
from .key_value_calls import KeyValueCalls, KeyValueOrJson
from .scanner import Steps
from .think_forms import SpelledThinkTags

CALLS, CALLS_END = "<ifm|tool_calls>", "</ifm|tool_calls>"
CALL, CALL_END = "<ifm|tool_call>", "</ifm|tool_call>"
THINK = "<ifm|think>"
PAIRS = {f"<ifm|{name}>": f"</ifm|{name}>" for name in ("think", "think_fast", "think_faster")}
_TYPE, _TYPE_END = "<ifm|arg_type>", "</ifm|arg_type>"
_TYPE_NAME = re.compile(r"[^<>\n]*")
_TYPES = frozenset(("string", "integer", "number", "boolean", "array", "object", "null"))


class K2HorizonElements(KeyValueCalls):
    """Reads a call in elements."""

    tags = (CALL,)
    keys: ClassVar = {"<ifm|arg_key>": "</ifm|arg_key>"}
    value_end = "</ifm|arg_value>"
    ends = (CALL_END, CALLS_END)
    _type = ""

    def before_value(self) -> Steps[None]:
        self._type = ""
        yield from self.scanner.space()
        if (yield from self.scanner.literal(_TYPE)):
            word = yield from self.scanner.word(_TYPE_NAME)
            self._type = word.partition("[")[0].strip().lower()
            yield from self.scanner.literal(_TYPE_END)
            yield from self.scanner.space()

    def kinds(self, schema: Any) -> frozenset[str]:
        return super().kinds(schema) or _TYPES & {self._type}


class K2HorizonCalls(KeyValueOrJson):
    """Reads a block of calls in elements or in JSON."""

    tags = (CALLS, CALL, CALL_END)
    noise = (CALLS_END,)
    elements = K2HorizonElements

    def read(self, tag: str) -> Steps[bool]:
        if tag == CALLS:
            yield from self.scanner.space()
            if not (yield from self.scanner.literal(CALL)):
                return False
        return (yield from super().read(tag))


def adapted(form: OutputForm, prompt_tail: str) -> OutputForm:
    """Returns the form with the reasoning tags for the effort that the prompt asks for."""
    if form.reasoning is None or form.reasoning.start != THINK:
        return form
    tail = prompt_tail.rstrip()
    start, end = next(
        ((start, end) for start, end in PAIRS.items() if tail.endswith((start, end))),
        (form.reasoning.start, form.reasoning.end),
    )
    return replace(form, reasoning=replace(form.reasoning, start=start, end=end))


K2_HORIZON = ModelFamily(
    tools=K2HorizonCalls,
    thinking=SpelledThinkTags.variant(spellings=PAIRS, breaks=(CALLS,)),
    form=CallForm(
        one=xml_call(f"{CALL}NAME", CALL_END, "<ifm|arg_key>KEY</ifm|arg_key><ifm|arg_value>", "</ifm|arg_value>"),
        before=CALLS,
        between="\n",
        after=CALLS_END,
        trigger=CALLS,
    ),
    adapted=adapted,
)
