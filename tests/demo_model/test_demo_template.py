"""The chat template supports every role and form of a message, and cannot be mistaken for that of another family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The "weather"',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "x": {"anyOf": []},
            },
        },
    },
}
SHOWN = (
    '{"name": "get_weather", "description": "The \\"weather\\"", '
    '"parameters": {"city": "string", "unit": ["c", "f"], "x": "any"}}'
)
HI = {"role": "user", "content": "hi"}


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_turns(template: jinja2.Template) -> None:
    messages = [
        {"role": "system", "content": "s"},
        HI,
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )


def test_developer_and_late_system_prompts_go_to_the_front(template: jinja2.Template) -> None:
    messages = [HI, {"role": "developer", "content": "one"}, {"role": "system", "content": "two"}]
    assert template.render(messages=messages).startswith("<|im_start|>system\none\ntwo<|im_end|>\n<|im_start|>user\nhi")


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "s"}]])
def test_tools(template: jinja2.Template, system: list[dict[str, str]]) -> None:
    head = "s\n" if system else ""
    text = template.render(messages=[*system, HI], tools=[WEATHER, {"name": "bare"}])
    tools = f'<tools>\n{SHOWN}\n{{"name": "bare", "parameters": {{}}}}\n</tools>'
    assert text == f"<|im_start|>system\n{head}{tools}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize("arguments", ['{"a": "é", "b": [1, true]}', {"a": "é", "b": [1, True]}])
def test_calls_with_arguments_as_text_and_as_object(template: jinja2.Template, arguments: Any) -> None:
    messages = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [call(arguments)]},
        {"role": "tool", "content": "r"},
    ]
    assert template.render(messages=messages, add_generation_prompt=True).endswith(
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"a": "é", "b": [1, '
        "true]}}\n</tool_call><|im_end|>\n"
        "<|im_start|>tool\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_words_and_two_calls(template: jinja2.Template) -> None:
    text = template.render(messages=[HI, {"role": "assistant", "content": "ok", "tool_calls": [call({}), call({})]}])
    one = '\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert text.endswith(f"<|im_start|>assistant\nok{one}{one}<|im_end|>\n")


def test_thinking_opens_the_block_only_when_asked(template: jinja2.Template) -> None:
    asked = template.render(messages=[HI], add_generation_prompt=True, enable_thinking=True)
    assert asked.endswith("<|im_start|>assistant\n<think>\n")
    for rest in ({}, {"enable_thinking": False}, {"enable_thinking": None}):
        assert template.render(messages=[HI], add_generation_prompt=True, **rest).endswith("<|im_start|>assistant\n")
    assert "<think>" not in template.render(messages=[HI], enable_thinking=True)


def test_thoughts_are_kept_within_the_turn_and_dropped_after_it(template: jinja2.Template) -> None:
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call({})]}
    within = template.render(messages=[HI, thought, {"role": "tool", "content": "r"}])
    assert "<|im_start|>assistant\n<think>\nhm\n</think>\n<tool_call>" in within
    assert "hm" not in template.render(messages=[HI, thought, {"role": "tool", "content": "r"}, HI])


@pytest.mark.slow
def test_equal_to_transformers(folder: Path, template: jinja2.Template) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [
        HI,
        {"role": "assistant", "content": "", "tool_calls": [call({"a": "<é>"})]},
        {"role": "tool", "content": "r"},
    ]
    for options in ({}, {"tools": [WEATHER]}, {"enable_thinking": True}, {"tools": [WEATHER], "enable_thinking": True}):
        theirs = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        assert theirs == template.render(messages=messages, add_generation_prompt=True, **options)
