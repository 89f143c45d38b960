"""The token ids rendered from a chat generate the same answer as the chat."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Process

pytestmark = pytest.mark.model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"seed": 7, "stop": ["e"], "n": 2},
        {"temperature": 0, "tools": [TOOL]},
        {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_a_rendered_chat_generates_its_answer(server: Process, fields: dict[str, Any]) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20, "return_token_ids": True, **fields}

    def ask(path: str, body: Any) -> Any:
        return httpx.post(server.url + path, json={"model": "demo"} | body, timeout=300).raise_for_status().json()

    answer, rendered = ask("/v1/chat/completions", chat), ask("/v1/chat/completions/render", chat)
    assert rendered["token_ids"] == answer["prompt_token_ids"]
    expected = [choice["token_ids"] for choice in answer["choices"]]
    assert [choice["token_ids"] for choice in ask("/inference/v1/generate", rendered)["choices"]] == expected
    streamed: dict[int, list[int]] = {}
    with httpx.stream("POST", server.url + "/inference/v1/generate", json=rendered | {"stream": True}) as events:
        for line in events.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    streamed.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert [streamed[index] for index in sorted(streamed)] == expected
