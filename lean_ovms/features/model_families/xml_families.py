"""The families whose calls are elements with an inner element for each parameter."""

from __future__ import annotations

from typing import ClassVar

from ...grammar.call_syntax import CallForm, ReasoningForm
from .base import ModelFamily, Syntax
from .call_forms import xml_call
from .json_calls import JsonCalls
from .key_value_calls import KeyValueCalls, KeyValueOrJson
from .scanner import Steps
from .think_tags import ThinkTags
from .xml_calls import XmlCalls


class ElementsOrJson(XmlCalls):
    """Reads calls in elements, or as JSON objects between the same tags."""

    def prepare(self) -> None:
        self._objects = JsonCalls(self.out)

    def read(self, tag: str) -> Steps[bool]:
        if tag == self.tags[0] and (yield from self.scanner.space()) == "{":
            self._open = yield from self._objects.calls()
            return self._open
        return (yield from super().read(tag))


class InvokeCalls(XmlCalls):
    """Reads a block of calls such as <invoke name="NAME"><parameter name="KEY">value</parameter></invoke>."""

    call_tag = "<invoke name="
    any_quotes = True
    keys: ClassVar = {"<parameter name=": ">"}
    value_end = "</parameter>"
    open_ended = True
    ends = ("</invoke>",)
    trim = False


def _invoke_form(begin: str, end: str) -> CallForm:
    return CallForm(
        one=xml_call('<invoke name="NAME">\n', "</invoke>", '<parameter name="KEY">', "</parameter>\n"),
        before=begin + "\n",
        between="\n",
        after="\n" + end,
        trigger=begin,
    )


class DotsCalls(ElementsOrJson, InvokeCalls):
    """Reads calls in invoke elements, or as JSON objects."""


class FunctionCalls(ElementsOrJson):
    """Reads <function=NAME><parameter=KEY>value</parameter>…</function>, between optional tags of the family.

    JSON objects may be between the tags instead, as Hermes' models write them.

    The end of a parameter may be missing before a tag on the next line.
    """

    call_tag = "<function="
    keys: ClassVar = {"<parameter=": ">"}
    value_end = "</parameter>"
    open_ended = True
    ends = ("</function>",)

    def call_follows(self) -> Steps[bool]:
        return (yield from super().call_follows()) or (yield from self.scanner.literal(self.call_tag))


class StepCalls(XmlCalls):
    """Reads calls in invoke elements, with or without <｜tool_call_begin｜>function<｜tool_sep｜> before them."""

    def read(self, tag: str) -> Steps[bool]:
        if tag != self.call_tag and (yield from self.scanner.literal("function")):
            yield from self.scanner.literal("<｜tool_sep｜>")
        return (yield from super().read(tag))


class ThinkingAsContent(Syntax):
    """Passes on reasoning with its tags as content, including the start tag at the end of the prompt."""

    start_tag = "<think>"

    def resume(self) -> Steps[None]:
        if (yield from self.scanner.peek()):
            self.out.text(self.start_tag)

    @classmethod
    def reasoning_form(cls) -> ReasoningForm:
        return ReasoningForm(start=cls.start_tag, end="</think>", opened=cls.opened)


_SEED = {"noise": ("<seed:bos>", "<seed:eos>")}

# dots.llm.
DOTS = ModelFamily(
    tools=DotsCalls.variant(
        tags=("<dots_function_call>", "<invoke name=", "</dots_function_call>"), block_end="</dots_function_call>"
    ),
    form=_invoke_form("<dots_function_call>", "</dots_function_call>"),
)
# GLM-4.5 and later.
GLM4_MOE = ModelFamily(
    tools=KeyValueOrJson.variant(
        tags=("<tool_call>", "</tool_call>"),
        noise=("<|observation|>", "<|user|>", "<|endoftext|>"),
        elements=KeyValueCalls.variant(
            tags=("<tool_call>",),
            noise=("<|observation|>", "<|user|>", "<|endoftext|>"),
            keys={"<arg_key>": "</arg_key>"},
            value_end="</arg_value>",
            ends=("</tool_call>",),
        ),
    ),
    form=CallForm(
        one=xml_call("<tool_call>NAME\n", "</tool_call>", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"),
        between="\n",
        trigger="<tool_call>",
    ),
)
# MiniCPM 5. A value may be a CDATA section. KEY may stand in single quotes.
MINICPM5 = ModelFamily(
    tools=XmlCalls.variant(
        tags=('<function name="',),
        noise=("<s>", "</s>", "<|im_end|>"),
        keys={'<param name="': '">', "<param name='": "'>"},
        after_name='">',
        value_end="</param>",
        ends=("</function>",),
        cdata=True,
        python=True,
    ),
    thinking=ThinkTags.variant(noise=("<s>", "</s>", "<|im_end|>", "</think>")),
    form=CallForm(
        one=xml_call('<function name="NAME">', "</function>", '<param name="KEY">', "</param>"),
        between="\n",
        trigger='<function name="',
    ),
)
# MiniMax M2. The template begins the reasoning; a call ends it too.
MINIMAX_M2 = ModelFamily(
    tools=InvokeCalls.variant(
        tags=("<minimax:tool_call>", "<invoke name=", "</minimax:tool_call>"),
        block_end="</minimax:tool_call>",
        noise=("[e~[",),
    ),
    thinking=ThinkTags.variant(starts_open=True, breaks=("<minimax:tool_call>",), noise=("[e~[",)),
    form=_invoke_form("<minimax:tool_call>", "</minimax:tool_call>"),
)
# For clients of MiniMax M2 that want the thinking in the content.
MINIMAX_M2_APPEND_THINK = ModelFamily(thinking=ThinkingAsContent.variant(noise=("[e~[",)))
# Qwen3-Coder, Qwen3.5 and later.
QWEN3CODER = ModelFamily(
    tools=FunctionCalls.variant(tags=("<tool_call>", "<function=", "</tool_call>"), block_end="</tool_call>"),
    form=CallForm(
        one=xml_call(
            "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", "<parameter=KEY>\n", "\n</parameter>\n"
        ),
        between="\n",
        trigger="<tool_call>",
    ),
)
# Seed-OSS. What the model notes about its budget of tokens, between tags of its own, is a part of the reasoning.
SEED_OSS = ModelFamily(
    tools=FunctionCalls.variant(
        tags=("<seed:tool_call>", "<function=", "</seed:tool_call>"), block_end="</seed:tool_call>", **_SEED
    ),
    thinking=ThinkTags.variant(start_tag="<seed:think>", end_tag="</seed:think>", call_tag="<seed:tool_call>", **_SEED),
    form=CallForm(
        one=xml_call(
            "<seed:tool_call>\n<function=NAME>\n", "</function>\n</seed:tool_call>", "<parameter=KEY>", "</parameter>\n"
        ),
        between="\n",
        trigger="<seed:tool_call>",
    ),
)
# Step 3, between <｜tool_calls_begin｜> and <｜tool_calls_end｜>.
STEP3 = ModelFamily(
    tools=StepCalls.variant(
        tags=("<｜tool_call_begin｜>", '<steptml:invoke name="'),
        noise=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>", "<|EOT|>"),
        call_tag='<steptml:invoke name="',
        keys={'<steptml:parameter name="': '">'},
        after_name='">',
        value_end="</steptml:parameter>",
        ends=("</steptml:invoke>",),
    ),
    form=CallForm(
        one=xml_call(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">',
            "</steptml:invoke><｜tool_call_end｜>",
            '<steptml:parameter name="KEY">',
            "</steptml:parameter>",
        ),
        before="<｜tool_calls_begin｜>",
        after="<｜tool_calls_end｜>",
        trigger="<｜tool_calls_begin｜>",
    ),
)
