"""Anthropic's client over HTTP with the demo model: messages, streams, a tool's round trip, counts, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import Process

if TYPE_CHECKING:
    import anthropic

pytestmark = pytest.mark.model

WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION: Any = {"role": "user", "content": "What is the weather in Oslo?"}
GREEDY = {"temperature": 0}


@pytest.fixture
def api(server: Process) -> Iterator[anthropic.Anthropic]:
    """Returns the client's module. It is imported here, because that takes a second, which only one worker of a run
    should pay."""
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(api: anthropic.Anthropic, messages: list[Any], **fields: Any) -> Any:
    return api.messages.create(model="demo", max_tokens=200, messages=messages, extra_body=GREEDY, **fields)


def test_a_tools_round_trip_unary_and_streamed(api: anthropic.Anthropic) -> None:
    first = ask(api, [QUESTION], tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    [call] = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
    with api.messages.stream(
        model="demo", max_tokens=200, messages=[QUESTION], tools=[WEATHER], extra_body=GREEDY
    ) as stream:
        same = stream.get_final_message()
    assert [(b.type, getattr(b, "input", None)) for b in same.content] == [
        (b.type, getattr(b, "input", None)) for b in first.content
    ]
    assert (same.stop_reason, same.usage.output_tokens) == (first.stop_reason, first.usage.output_tokens)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"weather": "sunny"}'}
    turns = [QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = ask(api, turns, tools=[WEATHER])
    assert second.stop_reason == "end_turn"
    assert "sunny" in second.content[0].text


def test_the_count_is_that_of_the_message(api: anthropic.Anthropic) -> None:
    fields: Any = {"system": "Be brief.", "tools": [WEATHER]}
    count = api.messages.count_tokens(model="demo", messages=[QUESTION], **fields)
    usage = ask(api, [QUESTION], **fields).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
