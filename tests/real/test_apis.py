"""SmolLM2-135M-Instruct makes the same call, and writes the same text, in the API of each client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import jsonschema
import pytest

from lean_ovms.types import Json
from tests.e2e.conftest import PATIENT_S, local_server
from tests.real.conftest import smollm2_of

PLACE: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["K", "°C"]}},
    "required": ["city", "unit"],
}
SCHEMA: Json = {
    "type": "object",
    "properties": {"places": {"type": "array", "items": PLACE, "minItems": 1, "maxItems": 2}},
    "required": ["places"],
}
FUNCTION: Json = {"name": "get_weather", "description": "Get the weather", "parameters": SCHEMA}
NESTED: Json = {"tools": [{"type": "function", "function": FUNCTION}]}
ASK: Json = {"messages": [{"role": "user", "content": "What is the weather in Zürich?"}]}
LIMITED: Json = {"temperature": 0, "max_tokens": 80}


class Said(NamedTuple):
    """An answer in the form of no API."""

    text: str
    """Its text."""
    calls: list[tuple[str, Json]]
    """The name and the arguments of each call."""
    tokens: tuple[int, int]
    """The numbers of tokens of the prompt and of the answer."""


def arguments(call: Json) -> tuple[str, Json]:
    """Returns the name and the arguments of a call whose arguments are a text."""
    return call["name"], json.loads(call["arguments"])


def of_chat(answer: Json) -> Said:
    message, usage = answer["choices"][0]["message"], answer["usage"]
    calls = [arguments(call["function"]) for call in message["tool_calls"]]
    return Said(message["content"] or "", calls, (usage["prompt_tokens"], usage["completion_tokens"]))


def of_responses(answer: Json) -> Said:
    texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    calls = [arguments(item) for item in answer["output"] if item["type"] == "function_call"]
    return Said("".join(texts), calls, (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]))


def of_messages(answer: Json) -> Said:
    usage = answer["usage"]
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    calls = [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
    prompt = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    return Said("".join(texts), calls, (prompt, usage["output_tokens"]))


def of_cohere(answer: Json) -> Said:
    message, tokens = answer["message"], answer["usage"]["tokens"]
    texts = [part["text"] for part in message.get("content") or ()]
    calls = [arguments(call["function"]) for call in message.get("tool_calls") or ()]
    return Said("".join(texts), calls, (tokens["input_tokens"], tokens["output_tokens"]))


def of_ollama(answer: Json) -> Said:
    message = answer["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return Said(message["content"], calls, (answer["prompt_eval_count"], answer["eval_count"]))


class Api(NamedTuple):
    """An API: how it is asked, and how it answers."""

    path: str
    """The endpoint."""
    body: Json
    """The request, with tools."""
    required: Json | None
    """The fields that require a call; None if the API has none."""
    read: Callable[[Json], Said]
    """The function that reads the answer."""


APIS = (
    Api(
        "/v1/chat/completions",
        ASK | LIMITED | NESTED,
        {"tool_choice": "required", "parallel_tool_calls": False},
        of_chat,
    ),
    Api(
        "/v1/responses",
        {
            "input": ASK["messages"],
            "temperature": 0,
            "max_output_tokens": 80,
            "tools": [{"type": "function", "strict": False, **FUNCTION}],
        },
        {"tool_choice": "required", "parallel_tool_calls": False},
        of_responses,
    ),
    Api(
        "/v1/messages",
        ASK
        | LIMITED
        | {"tools": [{"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": SCHEMA}]},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        of_messages,
    ),
    Api("/v2/chat", ASK | LIMITED | NESTED, {"tool_choice": "REQUIRED"}, of_cohere),
    Api(
        "/api/chat", ASK | NESTED | {"stream": False, "options": {"temperature": 0, "num_predict": 80}}, None, of_ollama
    ),
)


@pytest.mark.slow
@pytest.mark.model
async def test_every_api_gets_the_same_call_and_the_same_text() -> None:
    options: dict[str, Any] = {"model_path": str(smollm2_of("gguf")), "batch_invariant": True}
    async with local_server(**options) as local, httpx.AsyncClient(base_url=local.url, timeout=PATIENT_S) as client:
        for required in (True, False):
            said = {}
            for api in APIS:
                if not required or api.required is not None:
                    answer = await client.post(api.path, json=api.body | (api.required or {} if required else {}))
                    assert answer.status_code == 200, answer.text
                    said[api.path] = api.read(answer.json())
            first = next(iter(said.values()))
            assert dict.fromkeys(said, first) == said
            assert not required or [name for name, _ in first.calls] == ["get_weather"]
            for _, given in first.calls:
                jsonschema.validate(given, SCHEMA)
