"""Anthropic's own client with a scripted engine, without sockets: its types, streams and tool runner."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from lean_ovms.errors import EngineFailure, TooManyRequests
from tests.api.conftest import MakeApp
from tests.fakes import say
from tests.features.anthropic.conftest import HELLO, PARSERS, WEATHER, client

pytestmark = pytest.mark.slow  # importing the client takes seconds

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls or '' }};{% endfor %}"


def strict(message: Any) -> None:
    """Checks that a message matches the client's types exactly. The client itself is lenient."""
    type(message).model_validate(message.to_dict(), strict=False)


CALL = '<tool_call>{"name":"get_weather","arguments":{"city":"%s"}}</tool_call>'


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_tool_runner_goes_on_for_several_turns(make_app: MakeApp, streamed: bool) -> None:
    answers = [say("I look. ", CALL % "Oslo"), say(CALL % "Rome", CALL % "Nowhere"), say("Sunny, ", "and rain.")]
    app, engine = await make_app(lambda *_: answers.pop(0), chat_template=TEMPLATE, **PARSERS)
    asked: list[str] = []

    from anthropic import beta_async_tool

    @beta_async_tool
    async def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        if city == "Nowhere":
            raise ValueError("no such city")
        return f"sun in {city}"

    async with client(app) as api:
        runner = api.beta.messages.tool_runner(**HELLO, tools=[get_weather], stream=streamed)
        last = await runner.until_done()
    assert asked == ["Oslo", "Rome", "Nowhere"]
    assert last.content[0].text == "Sunny, and rain."
    assert last.stop_reason == "end_turn"
    prompt = engine.submitted[-1][0]
    assert "tool:sun in Oslo;" in prompt
    assert "tool:sun in Rome;" in prompt
    assert "no such city" in prompt
    assert "Error" in prompt


class City(pydantic.BaseModel):
    name: str
    people: int


async def test_structured_output_as_the_client_sends_it(make_app: MakeApp) -> None:
    app, engine = await make_app(say('{"name":"Oslo","people":7}'))
    async with client(app) as api:
        message = await api.messages.parse(**HELLO, output_format=City)
        assert message.parsed_output == City(name="Oslo", people=7)
        async with api.messages.stream(**HELLO, output_format=City) as stream:
            assert (await stream.get_final_message()).parsed_output == City(name="Oslo", people=7)
    assert len(engine.constraints) == 2
    assert all(engine.constraints)


async def test_counting_and_models(make_app: MakeApp) -> None:
    app, _ = await make_app()
    async with client(app) as api:
        count = await api.messages.count_tokens(model="m", messages=HELLO["messages"])
        assert count.input_tokens == 8
        described = await api.messages.count_tokens(model="m", messages=HELLO["messages"], tools=[WEATHER])
        assert described.input_tokens > 8  # a template without support for tools gets them as text
        models = [model async for model in api.models.list()]
        for model in models:
            strict(model)
        assert [(model.id, model.max_input_tokens) for model in models] == [("m", 1000)]
        assert (await api.models.retrieve("m")).display_name == "m"


async def test_errors_are_the_clients_exceptions(make_app: MakeApp) -> None:
    import anthropic

    app, engine = await make_app([[(0, "a", None)], EngineFailure("it broke")], api_key="secret")
    async with client(app) as api:
        with pytest.raises(anthropic.AuthenticationError) as denied:
            await api.messages.create(**HELLO)
        assert denied.value.request_id
    async with client(app, api_key="secret") as api:
        with pytest.raises(anthropic.BadRequestError, match="temperature out of range"):
            await api.messages.create(**HELLO, extra_body={"temperature": 3})
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await api.messages.create(**{**HELLO, "model": "x"})
        with pytest.raises(anthropic.InternalServerError, match="it broke"):
            await api.messages.create(**HELLO)
        with pytest.raises(anthropic.APIStatusError, match="it broke"):
            async with api.messages.stream(**HELLO) as stream:
                await stream.until_done()
        engine.refusal = TooManyRequests("the queue is full")
        with pytest.raises(anthropic.RateLimitError, match="queue is full"):
            await api.messages.create(**HELLO)
