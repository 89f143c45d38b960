"""Apertus: <|tools_prefix|>[{"NAME": {…}}, …]<|tools_suffix|>, reasoning in <|inner_prefix|>…<|inner_suffix|>."""

from __future__ import annotations

import json

from ...grammar import formats
from ...grammar.call_syntax import CallForm, Tool
from ...types import Json
from .base import ModelFamily
from .json_calls import EnclosedJson, decoded, json_arguments
from .scanner import Steps
from .think_tags import ThinkTags

PREFIX, SUFFIX = "<|tools_prefix|>", "<|tools_suffix|>"
_NOISE = ("<|inner_suffix|>", "<|assistant_end|>")


class ApertusCalls(EnclosedJson):
    """Reads calls that are objects whose only key is the name of the function."""

    tags = (PREFIX, SUFFIX)
    noise = _NOISE

    def call(self, *, eager: bool = True) -> Steps[bool]:
        if not (yield from self.scanner.literal("{")) or (yield from self.scanner.space()) != '"':
            return False
        name: list[str] = []
        if not (yield from self.scanner.json_string(name.append)) or (yield from self.scanner.space()) != ":":
            return False
        self.scanner.pos += 1
        if name == ['"', '"'] or (yield from self.scanner.space()) != "{":
            return False
        self.out.call(decoded("".join(name)))
        if (yield from json_arguments(self.out, self.out.arguments, in_call=True)):
            yield from self.scanner.space()
            yield from self.scanner.literal("}")
        return True


def _written(tool: Tool) -> Json:
    head = f"{{{json.dumps(tool.name, ensure_ascii=False)}: "
    return formats.tag(head, formats.json_value(tool.parameters), "}")


APERTUS = ModelFamily(
    tools=ApertusCalls,
    thinking=ThinkTags.variant(
        start_tag="<|inner_prefix|>",
        end_tag="<|inner_suffix|>",
        breaks=(PREFIX,),  # calls are part of the reasoning for the model
        noise=_NOISE,
    ),
    form=CallForm(one=_written, before=PREFIX + "[", between=", ", after="]" + SUFFIX, trigger=PREFIX),
)
