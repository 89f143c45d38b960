"""The families whose calls are JSON objects after a tag or between two, or are the whole answer: one row each."""

from __future__ import annotations

from ...grammar.call_syntax import CallForm, in_json
from .base import ModelFamily
from .json_calls import FENCE, EnclosedJson, EnclosedOrOffered, JsonCalls
from .think_tags import SpelledThinkTags, ThinkThenAnswer

_HERMES = EnclosedOrOffered.variant(tags=(FENCE, "<tool_call>", "</tool_call>"))
_HERMES_FORM = CallForm(one=in_json(around=("<tool_call>\n", "\n</tool_call>")), between="\n", trigger="<tool_call>")

FAMILIES = {
    # ERNIE 4.5: Hermes' calls. The start tag of the reasoning is optional.
    "ernie45": ModelFamily(
        tools=_HERMES,
        thinking=ThinkThenAnswer.variant(
            starts_open=True,
            call_tag="<tool_call>",
            answer_start="<response>",
            answer_end="</response>",
            noise=("</s>", "<|im_end|>"),
            keep_special_tokens=True,
        ),
        form=_HERMES_FORM,
    ),
    # Granite 3: a list after the tag, or as the whole answer. The reasoning is Granite 3.2's.
    "granite": ModelFamily(
        tools=EnclosedJson.variant(
            tags=("<|tool_call|>", "<tool_call>", "</tool_call>"),
            noise=("<|end_of_text|>",),
            keep_special_tokens=True,
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
    ),
    # Granite 20B for function calling: the tag before each call, without an end tag.
    "granite_20b_fc": ModelFamily(
        tools=JsonCalls.variant(
            tags=("<function_call>",), noise=("<|endoftext|>",), keep_special_tokens=True, one_call=True
        ),
        form=CallForm(one=in_json(around=("<function_call> ", "")), trigger="<function_call>"),
    ),
    # Hermes, Qwen2.5, Qwen3. Several objects, or a list of them, may stand between one pair of tags.
    "hermes3": ModelFamily(
        tools=_HERMES,
        form=_HERMES_FORM,
    ),
    # InternLM2.
    "internlm2": ModelFamily(
        tools=EnclosedJson.variant(
            tags=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>", "<|action_end|>"),
            noise=("<|im_end|>", "</s>"),
            keep_special_tokens=True,
        ),
        form=CallForm(
            one=in_json(arguments_key="parameters", around=("<|action_start|><|plugin|>\n", "<|action_end|>")),
            between="\n",
            trigger="<|action_start|><|plugin|>",
        ),
    ),
    # Jamba: a list.
    "jamba": ModelFamily(
        tools=EnclosedJson.variant(
            tags=("<tool_calls>", "</tool_calls>"), noise=("<|eom|>", "<|endoftext|>"), keep_special_tokens=True
        ),
        form=CallForm(
            one=in_json(),
            before="<tool_calls>[\n    ",
            between=",\n    ",
            after="\n]</tool_calls>",
            trigger="<tool_calls>",
        ),
    ),
    # Llama 3: objects with ; between them after the tag, or as the whole answer. Code after the tag is text.
    "llama3": ModelFamily(
        tools=JsonCalls.variant(
            tags=("<|python_tag|>",),
            noise=("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>"),
            keep_special_tokens=True,
            at_start=True,
            start_brackets="{",
        ),
        form=CallForm(one=in_json(arguments_key="parameters"), between="; ", trigger='{"name": "'),
    ),
    # Phi-4 mini: a list after functools, which alone is text, or between the tags, as Microsoft writes it.
    "phi4": ModelFamily(
        tools=JsonCalls.variant(
            tags=("functools", "<|tool_call|>"),
            noise=("<|/tool_call|>", "<|end|>", "<|endoftext|>"),
            keep_special_tokens=True,
            list_only=True,
        ),
        form=CallForm(one=in_json(), before="functools[", between=", ", after="]", trigger="functools["),
    ),
}
