"""What a template writes for an earlier answer is what its model writes; parsed, it is the same answer again."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from lean_ovms.features.model_families.call_text import WrittenCall, calls_text
from lean_ovms.features.model_families.registry import GENERIC, registry
from lean_ovms.types import ChatPrompt, Json
from tests.features.model_families.test_any_cut import CompletedChoice, parse
from tests.text.template.template_cases import TEMPLATES, TOKENS, ChatTemplate, assistant, user

PARSERS = registry()
TEXT = {"type": "string"}
TYPED: Json = {
    "inner": {"type": "object"},
    "list": {"type": "array", "items": TEXT},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "maybe": {"type": ["string", "null"]},
    "either": {"anyOf": [{"type": "integer"}, TEXT]},
    "word": {**TEXT, "enum": ["a", "b"]},
}
PROPERTIES: dict[str, Json] = {"say": {"text": TEXT, "more": TEXT}, "now": {}, "make": TYPED}
TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {"name": name, "description": "Does it.", "parameters": {"type": "object", "properties": members}},
    }
    for name, members in PROPERTIES.items()
]
SAID = {
    "plain": "Oslo",
    "empty": "",
    "unicode": "Łódź 日本 🙂 e\u0301",
    "quotes": 'say "hi", it\'s `x`',
    "lines": "a\nb\n\n  c\td",
    "blanks": "  x  ",
    "angles": "a < b > c & d </p> <b>x</b>",
    "tags": "<|im_end|> x </tool_call> y </parameter> z </function> .",
    "backslashes": 'C:\\new\\table \\" \\u0041 .',
    "numbers": "007",
    "words": "null",
    "json": '{"a": [1]}',
    "python": "def f(a, b='c'):\n    return {'x': [a, b]}, (1,) #",
    "brackets": "}}]} {{ x }} ] [ a, b: c = d; e",
    "controls": "a\u0001b\u2028c\u007f",
}
CALLS: dict[str, list[tuple[str, Json]]] = {
    **{name: [("say", {"text": text, "more": "."})] for name, text in SAID.items()},
    "none": [],
    "no arguments": [("now", {})],
    "two": [("say", {"text": "Oslo"}), ("make", {"whole": 3})],
    "three": [("now", {}), ("say", {"text": "1"}), ("say", {"text": "2"})],
    "values": [("make", {"list": ["x", "y, z"], "whole": -3, "number": 1.5, "flag": True, "word": "a"})],
    "nested": [("make", {"inner": {"a": [{"b": [[1, [2]], {"c": "d"}]}], "t": True, "n": None}})],
    "nothing in them": [("make", {"inner": {}, "list": []})],
    "null": [("make", {"maybe": None, "flag": False})],
    "one of two types": [("make", {"either": 5}), ("make", {"either": "x5"})],
    "large": [("make", {"whole": 12345678901234567890, "number": 1e-07})],
}
APART = {"gpt_oss", "phi4_mini"}
"""Templates that write a text and calls as two messages."""
UNREADABLE = {("lfm2", "backslashes"), ("lfm25", "backslashes")}
"""Calls that a template writes so that nobody could read them: it puts strings between quotes without escapes."""
REASONS = {"gemma", "lfm25", "minicpm5", "onyx", "qwen3", "qwen36"}
"""Templates that write the reasoning of the last answer, Gemma's only before calls."""


def answer(text: str, reasoning: str, calls: list[tuple[str, Json]]) -> Json:
    more: Json = {"reasoning_content": reasoning} if reasoning else {}
    if calls:
        more["tool_calls"] = [
            {
                "id": f"call0000{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for i, (name, arguments) in enumerate(calls)
        ]
    return assistant(text, **more)


class Written:
    """The texts that a template writes for answers."""

    def __init__(self, family: str) -> None:
        source = TEMPLATES[family].read_text()
        tool, self.reasoning = PARSERS.detect(source)
        self.tool = tool or GENERIC
        form = PARSERS.output_form(self.tool, None).calls
        self._template = ChatTemplate(source, special_tokens=TOKENS)
        self._template.write_calls = lambda calls: calls_text(form, [WrittenCall(*call) for call in calls])
        self._end = self._render(assistant("It is so."), thinks=False).rpartition("It is so.")[2].rstrip()

    def _render(self, *messages: Json, thinks: bool) -> str:
        return self._template.render(
            ChatPrompt(
                messages=[user("Ask?"), *messages],
                tools=TOOLS,
                add_generation_prompt=not messages,
                template_kwargs={"enable_thinking": thinks},
            )
        )

    def text(self, message: Json, *, thinks: bool) -> tuple[str, str]:
        """Returns the prompt and the answer. What a prompt ends with, but earlier answers do not begin with, is cut."""
        prompt, whole = self._render(thinks=thinks), self._render(message, thinks=thinks)
        at = next((at for at, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
        tag = whole.rfind("<", 0, at)
        at = tag if at < len(prompt) and ">" not in whole[tag:at] else at
        return whole[:at], whole[at:].rstrip().removesuffix(self._end)

    def parsed(self, text: str, prompt: str, size: int) -> CompletedChoice:
        parser = PARSERS.make(self.tool, self.reasoning, tools=TOOLS, prompt_tail=prompt[-400:])
        return parse(parser, [text[at : at + size] for at in range(0, len(text), size)])


def meaning(calls: list[Any]) -> list[tuple[str, str]]:
    return [
        (name, json.dumps(json.loads(text) if isinstance(text, str) else text, sort_keys=True)) for name, text in calls
    ]


@pytest.mark.slow
@pytest.mark.parametrize("family", TEMPLATES)
def test_what_the_template_writes_is_parsed_to_the_same_answer(family: str) -> None:
    written = Written(family)
    reasonings = ("", "Why?\nSo.") if family in REASONS else ("",)
    for (name, calls), text, reasoning in itertools.product(CALLS.items(), ("", "Let me see."), reasonings):
        if (family, name) in UNREADABLE or not (text or calls) or (text and calls and family in APART):
            continue
        if family == "gemma" and not calls:
            reasoning = ""
        prompt, whole = written.text(answer(text, reasoning, calls), thinks=bool(reasoning))
        found = written.parsed(whole, prompt, len(whole))
        assert meaning(found.calls) == meaning(calls), (name, whole)
        assert (found.content.strip(), found.reasoning.strip()) == (text, reasoning), (name, whole)
        for size in (1, 3):
            assert written.parsed(whole, prompt, size) == found, (name, whole)


@pytest.mark.slow
@pytest.mark.parametrize("family", PARSERS.tool_names)
def test_what_the_form_of_calls_writes_is_parsed_to_the_same_calls(family: str) -> None:
    form = PARSERS.output_form(family, None).calls
    assert form is not None
    for name, calls in CALLS.items():
        if not calls or (len(calls) > 1 and (form.alone or form.single)):
            continue
        text = calls_text(form, [WrittenCall(*call) for call in calls])
        for size in (1, 3, len(text)):
            parser = PARSERS.make(family, None, tools=TOOLS)
            found = parse(parser, [text[at : at + size] for at in range(0, len(text), size)])
            assert meaning(found.calls) == meaning(calls), (name, text)
            assert not found.content.strip(), (name, text)


@pytest.mark.parametrize("family", PARSERS.tool_names)
def test_markup_inside_a_call_is_known(family: str) -> None:
    """Tokenizers may have a special token for it, which is only in the text if it is part of a parser's tags."""
    form = PARSERS.output_form(family, None).calls
    text = calls_text(form, [WrittenCall("say", {"text": "Oslo", "more": "."})])
    markup = set(re.findall(r"<[^<>\s=]+>|\[[A-Z_]+\]", text)) - {"<text>", "</text>", "<more>", "</more>"}
    tags = PARSERS.make(family, None, tools=TOOLS).tags
    assert [token for token in markup if not any(token in tag for tag in tags)] == []
