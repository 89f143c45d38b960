"""A server of a GGUF file: chat, tools and errors are as with the model's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import local_server

pytestmark = pytest.mark.model

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def test_a_chat_and_a_tool_call(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.makers.make_gguf import make

    path = make(tmp_path / "demo.gguf")
    async with local_server(model_path=str(path), model_name="small") as local, local.client() as client:

        async def ask(text: str, **fields: Any) -> Any:
            messages: Any = [{"role": "user", "content": text}]
            return await client.chat.completions.create(model="small", messages=messages, temperature=0, **fields)

        answer = (await ask("What is the capital of France?")).choices[0]
        assert "Paris" in answer.message.content
        assert answer.finish_reason == "stop"
        call = (await ask("What is the weather in Zanzibar?", tools=[TOOL])).choices[0]
        assert call.finish_reason == "tool_calls"
        assert json.loads(call.message.tool_calls[0].function.arguments) == {"city": "Zanzibar"}
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
        assert (await ask("Hello!", response_format=form)).choices[0].message.content in ('"yes"', '"no"')
