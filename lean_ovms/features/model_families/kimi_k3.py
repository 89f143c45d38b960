"""Kimi K3: an answer has channels, response and then tools, with calls whose values have a type.

<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>value
<|close|>argument<|sep|>…<|close|>call<|sep|>…<|close|>tools<|sep|>

A string is bare text, everything else JSON. Attributes are escaped, &amp; and &quot;. Reasoning is the channel think.
The prompt ends with the begin of think or of response.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

from ...grammar.call_syntax import CallForm, OutputForm
from .base import ModelFamily
from .call_forms import xml_call
from .scanner import Steps, Tags
from .think_tags import ThinkTags
from .values import STRING
from .xml_calls import XmlCalls


def _begin(channel: str) -> str:
    return f"<|open|>{channel}<|sep|>"


def _end(channel: str) -> str:
    return f"<|close|>{channel}<|sep|>"


CALLS, CALLS_END = _begin("tools"), _end("tools")
RESPONSE, RESPONSE_END = _begin("response"), _end("response")
MESSAGE_END = _end("message")
_NOISE = (CALLS, CALLS_END, RESPONSE, RESPONSE_END, MESSAGE_END, "<|end_of_msg|>")
_SEP = Tags(["<|sep|>", "<|open|>", "<|close|>"])
_ATTRIBUTE = re.compile(r'\b(\w+)="([^"]*)"')


def _attributes(text: str) -> dict[str, str]:
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(text)}


class KimiK3Calls(XmlCalls):
    """Reads calls in the channel of tools. A value's type is that of its schema or, if that is open, its own."""

    tags = ("<|open|>call ",)
    noise = _NOISE
    keys: ClassVar = {"<|open|>argument ": ""}
    value_end = _end("argument")
    ends = (_end("call"), CALLS_END, MESSAGE_END)
    trim = False
    answer_header = RESPONSE
    _type = ""

    def name(self, after: str) -> Steps[str]:
        text, end = yield from self.scanner.head(_SEP)
        if end != _SEP.all[0]:
            self.scanner.pos -= len(end)
            return ""
        attributes = _attributes(text)
        self._type = attributes.get("type", "string")
        return attributes.get("tool" if after == self.after_name else "key", "")

    def kinds(self, schema: Any) -> frozenset[str]:
        kinds = super().kinds(schema)
        return STRING if self._type == "string" and (not kinds or "string" in kinds) else kinds


CALL_FORM = CallForm(
    one=xml_call(
        '<|open|>call tool="NAME" index="INDEX"<|sep|>',
        _end("call"),
        '<|open|>argument key="KEY" type="TYPE"<|sep|>',
        _end("argument"),
    ),
    forced=RESPONSE + RESPONSE_END,
    before=CALLS,
    after=CALLS_END,
    trigger=CALLS,
)


def adapted(form: OutputForm, prompt_tail: str) -> OutputForm:
    """Returns the form for a prompt, which may already have begun the response."""
    if not prompt_tail.endswith(RESPONSE):
        return form
    calls = replace(form.calls, forced=RESPONSE_END) if form.calls is CALL_FORM else form.calls
    header = "" if form.answer_header == RESPONSE else form.answer_header
    return replace(form, calls=calls, answer_header=header)


KIMI_K3 = ModelFamily(
    tools=KimiK3Calls,
    thinking=ThinkTags.variant(
        start_tag=_begin("think"),
        end_tag=_end("think"),
        breaks=(CALLS,),
        noise=_NOISE,
        answer_header=RESPONSE,
    ),
    form=CALL_FORM,
    adapted=adapted,
)
