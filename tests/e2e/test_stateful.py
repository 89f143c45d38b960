"""A server with --pipeline_type LM: what clients see of a pipeline that computes one request at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.e2e.conftest import LocalServer, local_server, until

pytestmark = pytest.mark.model

HELLO: Any = [{"role": "user", "content": "What is the capital of France?"}]


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    return await client.chat.completions.create(**{"model": "demo", "messages": HELLO, "temperature": 0, **fields})


async def test_answers_streams_formats_and_refusals() -> None:
    async with local_server(pipeline_type="LM") as local, local.client() as client:
        await answers_whole_and_in_pieces(client)
        await refuses_what_it_cannot_do(client)
        await keeps_to_a_schema(client)
        await serves_a_crowd(client)
        await stops_for_a_client_that_leaves(local, client)


async def answers_whole_and_in_pieces(client: openai.AsyncOpenAI) -> None:
    whole = await ask(client)
    assert whole.choices[0].finish_reason == "stop"
    assert "Paris" in whole.choices[0].message.content
    assert whole.usage.completion_tokens > 1
    stream = await ask(client, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    cut = await ask(client, max_tokens=2)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 2)
    two = await ask(client, n=2, temperature=1, seed=5)
    assert len(two.choices) == 2


async def refuses_what_it_cannot_do(client: openai.AsyncOpenAI) -> None:
    for fields, param in (({"logprobs": True}, "logprobs"), ({"extra_body": {"best_of": 3}}, "best_of")):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, **fields)
        assert caught.value.param == param


async def keeps_to_a_schema(client: openai.AsyncOpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["red", "blue"]}}}
    answer = await ask(client, response_format=form, max_tokens=200)  # the format allows a thought in front
    assert answer.choices[0].message.content in ('"red"', '"blue"')


async def serves_a_crowd(client: openai.AsyncOpenAI) -> None:
    answers = await asyncio.gather(*(ask(client, max_tokens=8) for _ in range(6)))
    assert len({a.choices[0].message.content for a in answers}) == 1


async def stops_for_a_client_that_leaves(local: LocalServer, client: openai.AsyncOpenAI) -> None:
    stream = await ask(client, stream=True, max_tokens=7000, extra_body={"ignore_eos": True})
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await stream.close()

    async def idle() -> bool:
        return (await local.model.stats()).running == 0

    await until(idle)
    assert (await ask(client)).choices[0].finish_reason == "stop"
