"""What agents do, with the official client and the demo model: call, result, answer; streamed or not."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.model

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}


def ask(client: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    return client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=200, **fields)


def streamed(client: openai.OpenAI, messages: list[Any], **fields: Any) -> tuple[str, list[dict[str, str]], str | None]:
    """Returns content, calls and finish reason, assembled from the deltas as clients do."""
    text, calls, reason = "", list[dict[str, str]](), None
    for chunk in ask(client, messages, stream=True, **fields):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or []:
            if part.id:
                calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
            calls[part.index]["arguments"] += part.function.arguments or ""
    return text, calls, reason


def test_a_round_trip_with_a_tool(client: openai.OpenAI) -> None:
    first = ask(client, [QUESTION], tools=[WEATHER]).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny"}'}
    second = ask(client, [QUESTION, first.message, result], tools=[WEATHER]).choices[0]
    assert second.finish_reason == "stop"
    assert "sunny" in second.message.content
    assert not second.message.tool_calls


def test_the_stream_of_a_call_folds_to_the_unary_one(client: openai.OpenAI) -> None:
    unary = ask(client, [QUESTION], tools=[WEATHER]).choices[0]
    text, [call], reason = streamed(client, [QUESTION], tools=[WEATHER])
    assert reason == "tool_calls"
    assert text == unary.message.content
    assert call["name"] == unary.message.tool_calls[0].function.name
    assert call["arguments"] == unary.message.tool_calls[0].function.arguments
    assert call["id"].startswith("call_")


def test_two_calls_in_one_answer_and_one_where_one_is_allowed(client: openai.OpenAI) -> None:
    both = [{"role": "user", "content": "What is the weather in Oslo and in Rome?"}]
    _, calls, _ = streamed(client, both, tools=[WEATHER])
    assert [json.loads(c["arguments"])["city"] for c in calls] == ["Oslo", "Rome"]
    assert len({c["id"] for c in calls}) == 2
    _, calls, reason = streamed(client, both, tools=[WEATHER], parallel_tool_calls=False)
    assert [json.loads(c["arguments"])["city"] for c in calls] == ["Oslo"]
    assert reason == "tool_calls"


def test_reasoning_and_a_call_in_one_answer(client: openai.OpenAI) -> None:
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = ask(client, [QUESTION], tools=[WEATHER], tool_choice="required", extra_body=thinking)
    message = answer.choices[0].message
    assert message.reasoning_content
    assert "<" not in message.reasoning_content
    assert message.tool_calls[0].function.name == "get_weather"
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
