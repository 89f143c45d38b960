"""Command R7B, Command A and later.

<|START_THINKING|>reasoning<|END_THINKING|>
<|START_ACTION|>[{"tool_call_id": "0", "tool_name": …, "parameters": {…}}, …]<|END_ACTION|>
<|START_RESPONSE|>content<|END_RESPONSE|>, or <|START_TEXT|>content<|END_TEXT|>

Citations, <co>text</co: 0:[1,2]>, are shown as their text.
"""

from __future__ import annotations

import json
import re

from ...grammar import formats
from ...grammar.call_syntax import CallForm, Tool
from ...types import Json
from .base import ModelFamily
from .call_forms import INDEX
from .json_calls import EnclosedJson
from .scanner import Steps, Tags
from .think_tags import ThinkTags

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
RESPONSE, TEXT = "<|START_RESPONSE|>", "<|START_TEXT|>"
_NOISE = (RESPONSE, "<|END_RESPONSE|>", TEXT, "<|END_TEXT|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
_CITATION = ("<co", "</co")
_SOURCES = re.compile(r"[\d:,\[\] ]*")


class CohereThinking(ThinkTags):
    """Reads reasoning between its tags; an action or an answer also ends it."""

    start_tag = "<|START_THINKING|>"
    end_tag = "<|END_THINKING|>"
    breaks = (ACTION, RESPONSE, TEXT)
    further = _CITATION
    noise = (*_NOISE, end_tag)

    def read(self, tag: str) -> Steps[bool]:
        if tag in _CITATION:
            return (yield from self._citation())
        return (yield from super().read(tag))

    def _inside(self) -> Steps[None]:
        while (tag := (yield from self.scanner.until(_IN_REASONING, self.out.reasoning))) in _CITATION:
            self.scanner.record(tag)
            if (yield from self._citation()):
                self.scanner.forget()
            else:
                self.out.reasoning(self.scanner.recorded())
        if tag in self.breaks:
            self.scanner.pos -= len(tag)
        self.out.pause()

    def _citation(self) -> Steps[bool]:
        yield from self.scanner.word(_SOURCES)
        return (yield from self.scanner.literal(">"))


_IN_REASONING = Tags([*CohereThinking.ends.all, *_CITATION])


def _written(tool: Tool) -> Json:
    name = json.dumps(tool.name, ensure_ascii=False)
    middle = formats.text(f'", "tool_name": {name}, "parameters": ')
    content = formats.sequence(INDEX, middle, formats.json_value(tool.parameters))
    return formats.tag('{"tool_call_id": "', content, "}")


COHERE_COMMAND = ModelFamily(
    tools=EnclosedJson.variant(
        name_keys=("tool_name", "name"),
        argument_keys=("parameters", "arguments"),
        tags=(ACTION, ACTION_END),
        noise=_NOISE,
    ),
    thinking=CohereThinking,
    form=CallForm(one=_written, before=ACTION + "[\n    ", between=",\n    ", after="\n]" + ACTION_END, trigger=ACTION),
)
