"""SmolLM2-135M-Instruct answers in fifteen typical schemas, chats for ten turns, and continues a partial answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import openai
import pytest

from lean_ovms.types import Json
from tests.e2e.conftest import local_server
from tests.real.conftest import smollm2_of

pytestmark = [pytest.mark.slow, pytest.mark.model]

NAME: Json = {"type": "string", "minLength": 1, "maxLength": 16}
COUNT: Json = {"type": "integer", "minimum": 0, "maximum": 99}
FLAG: Json = {"type": "boolean"}


def of(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def some(item: Json, least: int = 1, most: int = 2) -> Json:
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


def one_of(*values: Any) -> Json:
    return {"enum": [*values]}


TREE: Json = {"$ref": "#/$defs/Node", "$defs": {"Node": of(name=NAME, next={"anyOf": [{"$ref": "#/$defs/Leaf"},
    {"type": "null"}]}), "Leaf": of(name=NAME)}}  # fmt: skip
PORT: Json = {"type": "integer", "minimum": 1, "maximum": 65535}
DAY, TIME, ID = ({"type": "string", "format": name} for name in ("date", "date-time", "uuid"))
SCHEMAS: dict[str, Json] = {
    "Extract the person: Anna is 31 and lives in Oslo.": of(name=NAME, age=COUNT, city=NAME),
    "What is the mood of: I love this phone!": of(mood=one_of("positive", "negative", "neutral"), sure=COUNT),
    "Is 7 a prime number?": of(answer=FLAG, reason={"type": "string", "maxLength": 40}),
    "Make an invoice of two pens.": of(lines=some(of(item=NAME, count=COUNT)), total={"type": "number"}),
    "Plan a meeting on the first of May.": of(title=NAME, day=DAY, people=some(NAME)),
    "Give me an address in Paris.": of(street=NAME, code={"type": "string", "pattern": "^[0-9]{5}$"}, city=NAME),
    "List three colours.": some(NAME, 3, 3),
    "Rate this film from 1 to 5.": of(stars=one_of(1, 2, 3, 4, 5), text={"type": ["string", "null"], "maxLength": 30}),
    "Where is the treasure?": of(lat={"type": "integer", "minimum": -90, "maximum": 90}, seen=FLAG),
    "Draw a circle or a box.": {"anyOf": [of(kind={"const": "circle"}, r=COUNT), of(kind={"const": "box"}, w=COUNT)]},
    "Write a list of two files.": TREE,
    "Name the tags of an article on bread.": of(tags={**some(one_of("food", "art", "war"), 1, 3)}, draft=FLAG),
    "Set the options of a server.": {**of(port=PORT), "minProperties": 1},
    "Give an event its time.": of(at=TIME, id=ID),
    "Explain 2 + 3 step by step.": of(steps=some(of(explanation=NAME, output=NAME)), final_answer=NAME),
}
TURNS = (
    "My name is Ada.", "What is my name?", "What is the weather in Oslo?", "Is that cold?", "What should I wear?",
    "Name a city that is warmer.", "How far is it?", "Can I go there by train?", "Thank you.", "Goodbye!",
)  # fmt: skip
TOOL_TURN = 2
"""The answer to this turn is a tool call, whose result follows."""
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[openai.AsyncOpenAI]:
    weights, *exact = getattr(request, "param", "gguf").split()
    options: Json = {"model_path": str(smollm2_of(weights)), "batch_invariant": bool(exact)}
    async with local_server(model_name="m", **options) as local, local.client() as made:
        yield made


@pytest.mark.parametrize("client", ["gguf", "int4"], indirect=True)
async def test_answers_are_what_their_schemas_allow(client: Any) -> None:
    for question, schema in SCHEMAS.items():
        answer = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": question}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": schema},
            },
            temperature=0,
            max_tokens=250,
        )
        [choice] = answer.choices
        assert choice.finish_reason == "stop", (question, choice)
        jsonschema.validate(
            json.loads(choice.message.content), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )


async def test_a_chat_of_ten_turns_is_streamed_as_it_is_whole(client: Any) -> None:
    messages: list[Json] = [{"role": "system", "content": "You answer in one short sentence."}]
    for number, turn in enumerate(TURNS):
        messages.append({"role": "user", "content": turn})
        if number == TOOL_TURN:
            messages.append({"role": "assistant", "content": "", "tool_calls": [CALL]})
            messages.append({"role": "tool", "tool_call_id": "c1", "content": "3 degrees, rain"})
        asked = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 24}
        whole = await client.chat.completions.create(**asked)
        parts = [part async for part in await client.chat.completions.create(**asked, stream=True)]
        said = whole.choices[0].message.content
        assert said.strip()
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == said
        [reason] = [part.choices[0].finish_reason for part in parts if part.choices and part.choices[0].finish_reason]
        assert reason == whole.choices[0].finish_reason
        messages.append({"role": "assistant", "content": said})


@pytest.mark.parametrize("client", ["gguf exact"], indirect=True)
async def test_an_answer_that_was_begun_is_ended(client: Any) -> None:
    """The result is the same as without an interruption."""
    messages = [{"role": "user", "content": TURNS[2]}]
    asked = {"model": "m", "temperature": 0, "max_tokens": 24}
    whole = (await client.chat.completions.create(messages=messages, **asked)).choices[0].message.content
    begun = " ".join(whole.split(" ")[:3])
    assert whole.startswith(begun)
    rest = await client.chat.completions.create(
        messages=[*messages, {"role": "assistant", "content": begun}],
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
        **asked,
    )
    said = rest.choices[0].message.content
    assert said.startswith(" ")
    assert (begun + said).startswith(whole)
