"""The official client, as its users use it, with the demo model."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "Hello!"}]


def test_chat_stream_folds_to_the_unary_answer(client: openai.OpenAI) -> None:
    unary = client.chat.completions.create(model="demo", messages=HELLO, temperature=0, max_tokens=64)
    chunks = list(
        client.chat.completions.create(
            model="demo",
            messages=HELLO,
            temperature=0,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == unary.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == unary.choices[0].finish_reason
    assert chunks[-1].usage == unary.usage


def test_completions_unary_streamed_and_several_prompts(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "temperature": 0, "max_tokens": 12}
    one = client.completions.create(prompt="One two three", **ask)
    pieces = list(client.completions.create(prompt="One two three", stream=True, **ask))
    assert "".join(p.choices[0].text for p in pieces) == one.choices[0].text
    both = client.completions.create(prompt=["One two three", "Hello"], **ask)
    assert both.choices[0].text == one.choices[0].text
    assert [c.index for c in both.choices] == [0, 1]
    echoed = client.completions.create(prompt="One two three", echo=True, **ask)
    assert echoed.choices[0].text == "One two three" + one.choices[0].text


def test_a_stop_string_ends_the_answer_and_is_not_shown(client: openai.OpenAI) -> None:
    ask = {"model": "demo", "messages": HELLO, "temperature": 0, "max_tokens": 64}
    text = client.chat.completions.create(**ask).choices[0].message.content or ""
    middle = text[3:6]
    cut = client.chat.completions.create(stop=[middle], **ask).choices[0]
    assert cut.message.content == text[: text.index(middle)]
    assert cut.finish_reason == "stop"


def test_errors_reach_the_client_as_its_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="demo", messages=HELLO, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="demo", prompt="word " * 80_000)
    assert long.value.code == "context_length_exceeded"


class Person(pydantic.BaseModel):
    """The type that a client of OpenAI's `parse` requests."""

    age: int = pydantic.Field(ge=0, le=120)
    kind: Literal["human", "robot"]
    tags: list[Literal["a", "b"]] = pydantic.Field(max_length=3)


def test_an_answer_has_the_form_that_was_asked_for_whole_and_streamed(client: openai.OpenAI) -> None:
    """The streamed one is long, because all that the engine computes before the front end reads becomes one piece."""
    ask: dict[str, Any] = {"model": "demo", "messages": HELLO, "temperature": 0}
    answer = client.chat.completions.parse(response_format=Person, max_tokens=300, **ask)
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert answer.choices[0].finish_reason == "stop"
    days = {"type": "array", "items": {"enum": [*range(1, 10)]}, "minItems": 300, "maxItems": 300}
    schema = {"type": "object", "properties": {"days": days}, "required": ["days"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}}
    stream = client.chat.completions.create(response_format=form, max_tokens=2000, stream=True, **ask)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len([piece for piece in pieces if piece]) > 1
    jsonschema.validate(json.loads("".join(pieces)), schema)
