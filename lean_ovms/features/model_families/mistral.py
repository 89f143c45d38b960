"""Mistral, all generations, after [TOOL_CALLS]:

[{"name": …, "arguments": {…}}, …]     up to 2024; also as the whole answer without the tag
name{…}                                then
name[ARGS]{…}, name[CALL_ID]id[ARGS]{…}  since

Devstral: name[ARGS]{…} only; without [ARGS] it is text.
"""

from __future__ import annotations

import re

from ...grammar.call_syntax import CallForm
from .base import ModelFamily
from .call_forms import arguments_after, in_json
from .json_calls import JsonCalls, json_arguments
from .scanner import Steps, Tags
from .think_tags import ThinkTags

_NAME = re.compile(r"[^\[\]{}\"\s]*")
_AFTER = Tags(["[TOOL_CALLS]", "</s>"])


class MistralCalls(JsonCalls):
    """Reads calls after [TOOL_CALLS]."""

    tags = ("[TOOL_CALLS]",)
    noise = ("</s>",)
    inside = ("[CALL_ID]", "[ARGS]")
    at_start = True
    args_needed = False
    """Whether a name counts only with [ARGS] after it."""

    def read(self, tag: str) -> Steps[bool]:
        mark = yield from self.scanner.space()
        if mark and mark in "[{":
            return (yield from self.calls())
        return (yield from self.named_call())

    def named_call(self) -> Steps[bool]:
        """Reads a call that is a name followed by arguments."""
        name = yield from self.scanner.word(_NAME)
        yield from self.scanner.space()
        if (yield from self.scanner.literal("[CALL_ID]")):
            yield from self.scanner.word(_NAME)
        marked = yield from self.scanner.literal("[ARGS]")
        mark = yield from self.scanner.space()
        if not name or not (marked or (mark == "{" and not self.args_needed)):
            return False
        self.out.call(name)
        if mark == "{":
            complete = yield from json_arguments(self.out, self.out.arguments)
        else:  # not JSON: it is shown as the arguments, up to the next tag
            tag = yield from self.scanner.until(_AFTER, self.out.arguments)
            self.scanner.pos -= len(tag)
            complete = bool(tag)
        if complete:
            self.out.end_call()
        return True


DEVSTRAL = ModelFamily(
    tools=MistralCalls.variant(at_start=False, args_needed=True),
    form=CallForm(one=arguments_after("[TOOL_CALLS]NAME[ARGS]"), trigger="[TOOL_CALLS]"),
)
MISTRAL = ModelFamily(
    tools=MistralCalls,
    thinking=ThinkTags.variant(start_tag="[THINK]", end_tag="[/THINK]", noise=("</s>",)),
    form=CallForm(one=in_json(), before="[TOOL_CALLS][", between=", ", after="]", trigger="[TOOL_CALLS]"),
)
