"""Hunyuan 3, between <tool_calls> and </tool_calls>, any number of

<tool_call>NAME<tool_sep>
<arg_key>KEY</arg_key>
<arg_value>value</arg_value>…
</tool_call>

Hunyuan 4: the same without <tool_sep> and without newlines between the tags. Each name reads both.

Reasoning: <think>…</think>. Most checkpoints have a suffix in all tags, <think:opensource>. The end of the prompt shows
which one: the template closes the reasoning there, or opens it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from ...grammar.call_syntax import CallForm, OutputForm
from .base import ModelFamily, Syntax
from .call_forms import xml_call
from .key_value_calls import KeyValueCalls
from .scanner import Steps
from .think_forms import SpelledThinkTags

RELEASED = ":opensource"
SUFFIX = r"(:[\w.\-]{1,64})?>"
_AT_END = re.compile(rf"</?think{SUFFIX}\s*\Z")
_OPEN = re.compile(rf"<think{SUFFIX}\s*\Z")


def suffix_of(prompt_tail: str) -> str | None:
    """Returns the suffix of a model's tags, with the colon, or None if the prompt does not show it."""
    found = _AT_END.search(prompt_tail)
    return (found.group(1) or "") if found else None


def suffixes(prompt_tail: str) -> list[str]:
    """Returns all suffixes that are read: the model's own, and the other known ones."""
    found = suffix_of(prompt_tail)
    return list(dict.fromkeys(["" if found is None else found, "", RELEASED]))


@cache
def _reader(suffix: str) -> type[KeyValueCalls]:
    return KeyValueCalls.variant(
        tags=(f"<tool_call{suffix}>",),
        keys={f"<arg_key{suffix}>": f"</arg_key{suffix}>"},
        value_end=f"</arg_value{suffix}>",
        ends=(f"</tool_call{suffix}>", f"</tool_calls{suffix}>"),
        separator=f"<tool_sep{suffix}>",
    )


class HyCalls(Syntax):
    """Reads calls in elements, all tags of which have the same suffix."""

    def prepare(self) -> None:
        spellings = suffixes(self.out.prompt_tail)
        self._readers = {f"<tool_call{suffix}>": _reader(suffix)(self.out) for suffix in spellings}
        self._begins = {f"<tool_calls{suffix}>": f"<tool_call{suffix}>" for suffix in spellings}
        self.tags = (*self._readers, *self._begins)
        ends = [tag for reader in self._readers.values() for tag in (*reader.ends, reader.separator)]
        self.noise = tuple(ends)
        self.inside = tuple(tag for reader in self._readers.values() for tag in reader.inside)

    def read(self, tag: str) -> Steps[bool]:
        call = self._begins.get(tag, tag)
        if call != tag:
            yield from self.scanner.space()
            if not (yield from self.scanner.literal(call)):
                return False
        return (yield from self._readers[call].call())


class HyThinking(SpelledThinkTags):
    """Reads reasoning in <think>reasoning</think>answer; calls also end it."""

    spellings: Mapping[str, str] = MappingProxyType({"<think>": "</think>"})

    def prepare(self) -> None:
        known = suffixes(self.out.prompt_tail)
        self.spellings = {f"<think{suffix}>": f"</think{suffix}>" for suffix in known}
        self.breaks = tuple(f"<tool_calls{suffix}>" for suffix in known)
        super().prepare()

    @classmethod
    def opened(cls, prompt_tail: str) -> bool:
        return _OPEN.search(prompt_tail) is not None


@cache
def call_form(version: int, suffix: str) -> CallForm:
    """Returns the form of calls of Hunyuan 3 or 4 with a suffix in the tags."""
    separator, line = (f"<tool_sep{suffix}>\n", "\n") if version == 3 else ("", "")
    return CallForm(
        one=xml_call(
            f"<tool_call{suffix}>NAME{separator}",
            f"</tool_call{suffix}>",
            f"<arg_key{suffix}>KEY</arg_key{suffix}>{line}<arg_value{suffix}>",
            f"</arg_value{suffix}>{line}",
        ),
        before=f"<tool_calls{suffix}>{line}",
        between=line,
        after=f"{line}</tool_calls{suffix}>",
        trigger=f"<tool_calls{suffix}>",
    )


def adapted(form: OutputForm, prompt_tail: str) -> OutputForm:
    """Returns the form with the suffix of the model, which the end of its prompt shows."""
    suffix = suffix_of(prompt_tail)
    if not suffix:
        return form
    calls = next((call_form(version, suffix) for version in (3, 4) if form.calls is call_form(version, "")), form.calls)
    reasoning = form.reasoning
    if reasoning is not None and reasoning.start == HyThinking.start_tag:
        reasoning = replace(reasoning, start=f"<think{suffix}>", end=f"</think{suffix}>")
    return replace(form, calls=calls, reasoning=reasoning)


HY_V3 = ModelFamily(tools=HyCalls, thinking=HyThinking, form=call_form(3, ""), adapted=adapted)
HY_V4 = ModelFamily(tools=HyCalls, thinking=HyThinking, form=call_form(4, ""), adapted=adapted)
