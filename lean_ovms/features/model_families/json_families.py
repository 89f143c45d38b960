"""The families whose calls are JSON objects after a tag, between two tags, or as the whole answer."""

from __future__ import annotations

import re

from ...grammar.call_syntax import CallForm
from .base import ModelFamily
from .call_forms import in_json
from .hermes import HERMES3
from .json_calls import EnclosedJson, JsonCalls, json_arguments
from .scanner import Steps
from .think_forms import SpelledThinkTags, ThinkThenAnswer
from .think_tags import ThinkTags

_NAME = re.compile(r"[\w.\-]*")


class ListCalls(JsonCalls):
    """Reads calls in a list after a tag; without a list, the tag is text.

    The whole answer may be calls without a tag, as Phi-4 mini's chat template writes earlier ones.
    """

    at_start = True
    offered_only = True
    start_brackets = "[{"

    def read(self, tag: str) -> Steps[bool]:
        return (yield from self.scanner.space()) == "[" and (yield from super().read(tag))


class LlamaCalls(JsonCalls):
    """Reads objects, and calls of the form <function=NAME>{…}</function>, as Meta's instructions for own tools ask."""

    tags = ("<|python_tag|>", "<function=")
    noise = ("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>")
    nested_keys = ("parameters", "arguments")
    at_start = True
    start_brackets = "[{"

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.tags[0]:
            return (yield from super().read(tag))
        name = yield from self.scanner.word(_NAME)
        if not name or not (yield from self.scanner.literal(">")) or (yield from self.scanner.space()) != "{":
            return False
        self.out.call(name)
        yield from json_arguments(self.out, self.out.arguments)
        yield from self.scanner.space()
        yield from self.scanner.literal("</function>")
        return True


_APRIEL_NOISE = ("[END FINAL RESPONSE]", "<|end|>")

# Apriel 1.5 and 1.6: a list. Every answer begins with reasoning, whose first line may be in the prompt.
APRIEL = ModelFamily(
    tools=EnclosedJson.variant(tags=("<tool_calls>", "</tool_calls>"), noise=_APRIEL_NOISE),
    thinking=ThinkTags.variant(
        start_tag="Here are my reasoning steps:",
        end_tag="[BEGIN FINAL RESPONSE]",
        breaks=("<tool_calls>",),
        noise=_APRIEL_NOISE,
    ),
    form=CallForm(one=in_json(), before="<tool_calls>[", between=", ", after="]</tool_calls>", trigger="<tool_calls>"),
)
# ERNIE 4.5: Hermes' calls. The start tag of the reasoning is optional.
ERNIE45 = ModelFamily(
    tools=HERMES3.tools,
    thinking=ThinkThenAnswer.variant(
        starts_open=True,
        call_tag="<tool_call>",
        answer_start="<response>",
        answer_end="</response>",
        noise=("</s>", "<|im_end|>"),
    ),
    form=HERMES3.form,
)
# Granite 3: a list after the tag, or as the whole answer. The reasoning is Granite 3.2's.
GRANITE = ModelFamily(
    tools=EnclosedJson.variant(
        tags=("<|tool_call|>", "<tool_call>", "</tool_call>"),
        noise=("<|end_of_text|>",),
        at_start=True,
    ),
    thinking=SpelledThinkTags.variant(
        spellings={
            "Here is my thought process:": "Here is my response:",
            "Here's my thought process:": "Here's my response:",
        },
        drops_ends=False,
    ),
    form=CallForm(one=in_json(), before="<|tool_call|>[", between=", ", after="]", trigger="<|tool_call|>"),
)
# Granite 20B for function calling: the tag before each call, without an end tag.
GRANITE_20B_FC = ModelFamily(
    tools=JsonCalls.variant(tags=("<function_call>",), noise=("<|endoftext|>",), one_call=True),
    form=CallForm(one=in_json(around=("<function_call> ", "")), trigger="<function_call>"),
)
# InternLM2.
INTERNLM2 = ModelFamily(
    tools=EnclosedJson.variant(
        tags=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>", "<|action_end|>"),
        noise=("<|im_end|>", "</s>"),
    ),
    form=CallForm(
        one=in_json(arguments_key="parameters", around=("<|action_start|><|plugin|>\n", "<|action_end|>")),
        between="\n",
        trigger="<|action_start|><|plugin|>",
    ),
)
# Jamba: a list.
JAMBA = ModelFamily(
    tools=EnclosedJson.variant(tags=("<tool_calls>", "</tool_calls>"), noise=("<|eom|>", "<|endoftext|>")),
    form=CallForm(
        one=in_json(), before="<tool_calls>[\n    ", between=",\n    ", after="\n]</tool_calls>", trigger="<tool_calls>"
    ),
)
# Llama 3: objects with ; between them, or a list, after the tag or as the whole answer. Code after the tag is text.
LLAMA3 = ModelFamily(
    tools=LlamaCalls,
    form=CallForm(one=in_json(arguments_key="parameters"), between="; ", trigger='{"name": "'),
)
# Nemotron Nano 2: a list. Nemotron 3 writes calls as Qwen3-Coder does.
NEMOTRON_JSON = ModelFamily(
    tools=EnclosedJson.variant(tags=("<TOOLCALL>", "</TOOLCALL>"), noise=("<SPECIAL_12>", "</s>")),
    form=CallForm(one=in_json(), before="<TOOLCALL>[", between=", ", after="]</TOOLCALL>", trigger="<TOOLCALL>"),
)
# Phi-4 mini: a list after functools, which alone is text, or between the tags, as Microsoft writes it.
PHI4 = ModelFamily(
    tools=ListCalls.variant(
        tags=("functools", "<|tool_call|>"),
        noise=("<|/tool_call|>", "<|end|>", "<|endoftext|>"),
    ),
    form=CallForm(one=in_json(), before="functools[", between=", ", after="]", trigger="functools["),
)
