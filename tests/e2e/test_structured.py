"""Structured output and forced calls through the official client, with the demo model and a random one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
import pytest_asyncio

from tests.e2e.conftest import LocalServer, local_server

pytestmark = pytest.mark.model

RANDOM = Path(__file__).parents[1] / "data" / "llama_sp"
HELLO: Any = [{"role": "user", "content": "Hello!"}]
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 10},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]


class Person(pydantic.BaseModel):
    """The type that a client of OpenAI's `parse` requests."""

    age: int = pydantic.Field(ge=0, le=120)
    kind: Literal["human", "robot"]
    tags: list[Literal["a", "b"]] = pydantic.Field(max_length=3)


def test_parse_gives_the_pydantic_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="demo", messages=HELLO, response_format=Person, temperature=0, max_tokens=300
    )
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert answer.choices[0].finish_reason == "stop"


def test_an_answer_in_json_streams(client: openai.OpenAI) -> None:
    """The answer is long, because everything that the engine computes before the front end reads becomes one piece."""
    days = {"type": "array", "items": SCHEMA["properties"]["days"], "minItems": 300, "maxItems": 300}
    schema = {"type": "object", "properties": {"days": days}, "required": ["days"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}}
    stream = client.chat.completions.create(
        model="demo", messages=HELLO, response_format=form, temperature=0, max_tokens=2000, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len([p for p in pieces if p]) > 1
    jsonschema.validate(json.loads("".join(pieces)), schema)


def test_several_answers_each_keep_to_the_form(client: openai.OpenAI) -> None:
    body = {"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}}
    answer = client.chat.completions.create(
        model="demo", messages=HELLO, n=4, temperature=1.5, max_tokens=400, extra_body=body
    )
    texts = [choice.message.content or "" for choice in answer.choices if choice.finish_reason == "stop"]
    assert all(re.fullmatch("[a-c]{3}-[0-9]{2}", text) for text in texts)
    assert len(set(texts)) > 1


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def local() -> AsyncIterator[LocalServer]:
    async with local_server(model_path=str(RANDOM), model_name="random", tool_parser="hermes3") as local:
        yield local


FAMILIES = ["hermes3", "qwen3coder"]
"""Calls in JSON and in tags; test_structured_engine.py and tests/grammar test every family."""


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_random_model_calls_what_it_must(local: LocalServer, family: str, stream: bool) -> None:
    local.model.chat_format.answers.tool_parser = family
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    for tool_choice in ("required", choice):
        async with local.client() as client:
            request: Any = {
                "model": "random", "messages": HELLO, "tools": TOOLS, "tool_choice": tool_choice, "temperature": 1.5,
                "seed": 3, "max_tokens": 900, "parallel_tool_calls": False,
            }  # fmt: skip
            if stream:
                calls, reason = await streamed(client, request)
            else:
                answer = await client.chat.completions.create(**request)
                reason = answer.choices[0].finish_reason
                calls = [[c.function.name, c.function.arguments] for c in answer.choices[0].message.tool_calls or []]
        assert reason == "tool_calls"
        [[name, arguments]] = calls
        assert name in ("get_weather", "now") if tool_choice == "required" else name == "get_weather"
        jsonschema.validate(json.loads(arguments), SCHEMA if name == "get_weather" else {"maxProperties": 0})


async def streamed(client: openai.AsyncOpenAI, request: Any) -> tuple[list[list[str]], str]:
    """Returns [name, arguments] of each call and the finish reason of a streamed answer."""
    calls: list[list[str]] = []
    reason = ""
    async for chunk in await client.chat.completions.create(**request, stream=True):
        reason = chunk.choices[0].finish_reason or reason
        for delta in chunk.choices[0].delta.tool_calls or []:
            if delta.function.name:
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments or ""
    return calls, reason


@pytest.mark.asyncio(loop_scope="module")
async def test_a_random_model_writes_what_the_schema_allows(local: LocalServer) -> None:
    local.model.chat_format.answers.tool_parser = "hermes3"
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}
    async with local.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="random", messages=HELLO, response_format=form, seed=seed, temperature=1.0, max_tokens=400
                )
                for seed in range(8)
            )
        )
    ended = [a.choices[0].message.content or "" for a in answers if a.choices[0].finish_reason == "stop"]
    assert len(ended) == 8
    for text in ended:
        jsonschema.validate(json.loads(text), SCHEMA)
