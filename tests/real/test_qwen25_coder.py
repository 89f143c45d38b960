"""Qwen2.5-Coder 1.5B Instruct as a GGUF file, a model of a typical size: its calls, and code that it fills in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.types import Json
from tests.e2e.conftest import local_server


def tool(name: str, *members: str) -> Json:
    properties = {member: {"type": "string"} for member in members}
    parameters = {"type": "object", "properties": properties, "required": [*members]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [tool("get_weather", "city"), tool("read_file", "path"), tool("edit_file", "path", "old", "new")]
QUESTIONS: dict[str, tuple[str, Json]] = {
    "What is the weather in Oslo?": ("get_weather", {"city": "Oslo"}),
    "Show me the content of README.md": ("read_file", {"path": "README.md"}),
    "In main.py replace foo with bar": ("edit_file", {"path": "main.py", "old": "foo", "new": "bar"}),
}


@pytest.mark.slow
@pytest.mark.model
async def test_its_calls_are_calls_though_it_writes_them_in_fences(qwen25_coder: Path) -> None:
    """Its template shows <tool_call>, but it writes ```json."""
    async with local_server(model_path=str(qwen25_coder), model_name="m") as local, local.client() as client:
        for question, call in QUESTIONS.items():
            asked: Json = {"model": "m", "messages": [{"role": "user", "content": question}], "tools": TOOLS}
            answer: Any = await client.chat.completions.create(**asked, temperature=0, max_tokens=100)
            [choice] = answer.choices
            calls = [(made.function.name, json.loads(made.function.arguments)) for made in choice.message.tool_calls]
            assert (choice.finish_reason, calls, choice.message.content or "") == ("tool_calls", [call], "")
        answer = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Write a JSON example of a person in a code block."}],
            tools=TOOLS,
            temperature=0,
            max_tokens=60,
        )
        assert (answer.choices[0].message.tool_calls or [], "```" in answer.choices[0].message.content) == ([], True)
        filled: Any = await client.completions.create(
            model="m", prompt="def add(a, b):\n", suffix="\n\nprint(add(1, 2))", temperature=0, max_tokens=20
        )
        assert "return a + b" in filled.choices[0].text
