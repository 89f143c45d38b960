"""Conversations for the chat templates, and the form in which each template needs them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lean_ovms.features.model_families.arrange import ProbedTemplate
from lean_ovms.text.template import chat_template


class ChatTemplate(chat_template.ChatTemplate):
    """A chat template that is probed, like those of models."""

    def __init__(self, *texts: str, **options: Any) -> None:
        settings = replace(options.pop("settings", chat_template.DEFAULTS), reader=ProbedTemplate)
        super().__init__(*texts, **options, settings=settings)


DATA = Path(__file__).parents[2] / "data"
VECTORS = Path(__file__).parents[2] / "vectors" / "templates.json"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = {path.stem.removeprefix("chat_template_"): path for path in sorted(DATA.glob("chat_templates/*.jinja"))}
STRING_ARGUMENTS = {"gpt_oss", "phi4_mini", "qwen3coder_instruct"}
"""Templates that need the arguments of earlier calls as JSON text; others need objects."""


@cache
def compiled(family: str) -> ChatTemplate:
    """Returns the template of a family, compiled and probed once for all tests."""
    return ChatTemplate(TEMPLATES[family].read_text(), special_tokens=TOKENS)


class FixedDate(datetime):
    """The date of all renderings."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2026, 2, 3, 4, 5, 6)


class Case(NamedTuple):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - never written to
    add_generation_prompt: bool = True
    continue_final_message: bool = False


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather <now> & "here" in Łódź',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city"},
                "days": {"type": "integer", "enum": [1, 2]},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}


def system(text: str = "You are terse.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any = "Hello.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str = "get_weather", call_id: str = "abc123def", **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text: str = '{"t": 21}', call_id: str = "abc123def", name: str = "get_weather") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": name}


ASKED = [user("Weather in Łódź?"), assistant("", tool_calls=[call(city="Łódź <b>", days=2, where={"lat": 1.5})])]
CASES: dict[str, Case] = {
    "user": Case([user()]),
    "user, no generation prompt": Case([user()], add_generation_prompt=False),
    "system": Case([system(), user()]),
    "turns": Case([user("1"), assistant("2"), user("3"), assistant("4"), user("5")]),
    "turns with a system message": Case([system(), user("1"), assistant("2"), user("3")]),
    "ends with the assistant": Case([user("1"), assistant("2")], add_generation_prompt=False),
    "unicode": Case(
        [system("Ты — помощник. 🙂"), user("日本語 é e\u0301 <|im_end|> </s> &amp; \"quoted\" 'single' \\n")]
    ),
    "white space": Case([user("  two\n\n lines\t "), assistant(" padded \n"), user("\n")]),
    "empty content": Case([user("")]),
    "tools": Case([user("Weather?")], [WEATHER]),
    "tools and a system message": Case([system(), user("Weather?")], [WEATHER, CLOCK]),
    "tool call": Case(ASKED, [WEATHER], add_generation_prompt=False),
    "tool result": Case([*ASKED, tool()], [WEATHER]),
    "tool result, without tools": Case([*ASKED, tool()]),
    "after a tool result": Case([system(), *ASKED, tool(), assistant("Warm."), user("Thanks")], [WEATHER]),
    "call without arguments": Case([user("Time?"), assistant("", tool_calls=[call("now")]), tool("12:00", name="now")]),
    "two calls": Case(
        [
            user("Both?"),
            assistant("", tool_calls=[call(city="A", tags=["x", "y"]), call("now", call_id="abc123dee")]),
            tool("a"),
            tool("b", call_id="abc123dee", name="now"),
        ],
        [WEATHER, CLOCK],
    ),
    "text and a call": Case([user("W?"), assistant("Let me see.", tool_calls=[call(city="A")]), tool()], [WEATHER]),
    "reasoning": Case([user("1"), assistant("2", reasoning_content="because"), user("3")]),
    "reasoning and a call": Case(
        [user("1"), assistant("", reasoning_content="look it up", tool_calls=[call(city="A")]), tool()], [WEATHER]
    ),
    "thinking in the text": Case([user("1"), assistant("<think>\nhm\n</think>\n\n2"), user("3")]),
    "enable_thinking true": Case([user()], kwargs={"enable_thinking": True}),
    "enable_thinking false": Case([user()], kwargs={"enable_thinking": False}),
    "reasoning_effort": Case([user()], kwargs={"reasoning_effort": "high"}),
    "unknown argument": Case([user()], kwargs={"colour": {"of": ["the", "sky"]}}),
    "documents": Case([user()], kwargs={"documents": [{"title": "T", "text": "D"}]}),
    "developer": Case([{"role": "developer", "content": "Be kind."}, user()]),
    "starts with the assistant": Case([assistant(), user()]),
    "two users": Case([user("1"), user("2")]),
    "long": Case([m for i in range(20) for m in (user(f"question {i}"), assistant(f"answer {i}"))] + [user("end")]),
}


def continued(*messages: dict[str, Any]) -> Case:
    return Case(list(messages), add_generation_prompt=False, continue_final_message=True)


CASES |= {
    "continued": continued(user(), assistant("The answer is")),
    "continued after white space": continued(user(), assistant("The answer is ")),
    "continued after a line break": continued(user(), assistant("One\n\n")),
    "continued with the same text before": continued(
        user("Hello."), assistant("Hello."), user("and"), assistant("Hello.")
    ),
    "continued user": continued(user("I am")),
}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


PARTS_CASES = {
    "parts": Case([user(parts("one"))]),
    "several parts": Case([user(parts("one", "", " two ")), assistant(parts("three")), user("four")]),
    "continued parts": continued(user(), assistant(parts("one", "two"))),
}
EVERY_ROLE = {"system", "user", "assistant", "tool"}
READ_PARTS = {
    "devstral": {"user"},
    "gemma": EVERY_ROLE,
    "lfm2": EVERY_ROLE,
    "lfm25": EVERY_ROLE,
    "onyx": EVERY_ROLE,
    "qwen36": EVERY_ROLE,
    "qwen3vl": EVERY_ROLE,
}
"""Templates that read content as parts, with the roles of these messages."""


def cases_for(template: str) -> dict[str, Case]:
    """Returns the conversations in the form that the template needs."""
    cases = CASES | PARTS_CASES if READ_PARTS.get(template) == EVERY_ROLE else CASES
    if template in STRING_ARGUMENTS:
        return {name: with_string_arguments(case) for name, case in cases.items()}
    return cases


def for_transformers(template: str) -> tuple[str, dict[str, Case]]:
    """Returns source and conversations, in another form if transformers needs it.

    It has no filter from_json, so the template gets objects instead. Only from 5.20 on does it copy reasoning to
    `thinking`, as the contract does.
    """
    source = TEMPLATES[template].read_text()
    if "| from_json" in source:
        return source.replace("| from_json", ""), CASES
    cases = cases_for(template)
    if template == "lfm25":
        cases = {
            name: case._replace(messages=[_with_thinking(m) for m in case.messages]) for name, case in cases.items()
        }
    return source, cases


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "thinking": message["reasoning_content"]} if "reasoning_content" in message else message


def with_string_arguments(case: Case) -> Case:
    """Returns the conversation as OpenAI's clients send it: arguments are JSON text."""
    messages = copy.deepcopy(case.messages)
    for message in messages:
        for entry in message.get("tool_calls", []):
            entry["function"]["arguments"] = json.dumps(entry["function"]["arguments"], ensure_ascii=False)
    return case._replace(messages=messages)
