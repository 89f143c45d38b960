"""The Responses API as the official client and the Agents SDK use it, with the demo model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import ANY_FLAGS, Process, start_process

pytestmark = pytest.mark.model

ASK: dict[str, Any] = {"model": "demo", "temperature": 0, "max_output_tokens": 48}


def test_a_stream_folds_to_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.responses.create(input="Hello!", **ASK)
    with client.responses.stream(input="Hello!", **ASK) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert final.id != whole.id
    kinds = [event.type for event in client.responses.create(input="Hello!", stream=True, **ASK)]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


ENDS = ("response.completed", "response.incomplete", "error")


def test_responses_over_one_websocket(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        previous: Any = openai.omit
        for text in ("Hello!", "What can you do?"):
            fields: Any = {
                "model": "demo",
                "input": text,
                "previous_response_id": previous,
                "store": False,
                "max_output_tokens": 20,
            }
            connection.response.create(**fields)
            last = next(event for event in connection if event.type in ENDS)
            assert last.type != "error"
            assert last.response.output_text
            previous = last.response.id


def test_a_stop_lets_background_responses_finish_and_a_conversation_goes_on_after_it(tmp_path: Path) -> None:
    store = ("--response_store", str(tmp_path / "store.sqlite"))
    with start_process(*ANY_FLAGS, *store) as process:
        process.wait_for("ready: demo")
        with openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
            made = client.responses.create(input="Hello!", background=True, extra_body={"ignore_eos": True}, **ASK)
        assert process.stop() == 0
    with (
        start_process(*ANY_FLAGS, *store) as process,
        openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        found = client.responses.retrieve(made.id)
        assert found.usage
        assert found.usage.output_tokens == ASK["max_output_tokens"]
        next_one = client.responses.create(input="Thank you.", previous_response_id=made.id, **ASK)
        items = list(client.responses.input_items.list(next_one.id, order="asc"))
    assert [item.role for item in items if item.type == "message"] == ["user", "assistant", "user"]


async def test_the_agents_sdk_runs_a_tool_loop_to_its_end(server: Process) -> None:
    import agents

    agents.set_tracing_disabled(True)
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """Get the current weather of a city"""
        asked.append(city)
        return "Sunny, 21 degrees."

    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        agent = agents.Agent(
            name="Helper",
            instructions="You are a helpful assistant.",
            tools=[agents.function_tool(get_weather)],
            model=agents.OpenAIResponsesModel("demo", client),
            model_settings=agents.ModelSettings(temperature=0, max_tokens=100),
        )
        question = "What is the weather in Paris?"
        whole = await agents.Runner.run(agent, question)
        streamed = agents.Runner.run_streamed(agent, question)
        kinds = [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
        assert kinds == ["tool_called", "tool_output", "message_output_created"]
        assert whole.final_output == streamed.final_output
        assert whole.final_output
        assert len(asked) == 2
        again = await agents.Runner.run(agent, "Thank you.", previous_response_id=whole.last_response_id)
        assert again.final_output


async def test_the_agents_sdk_keeps_the_reasoning_of_turns_that_are_not_stored(server: Process) -> None:
    import agents

    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        settings = agents.ModelSettings(
            temperature=0,
            max_tokens=300,
            store=False,
            response_include=["reasoning.encrypted_content"],
            reasoning={"effort": "low"},  # type: ignore[arg-type]
        )
        model = agents.OpenAIResponsesModel("demo", client)
        agent = agents.Agent(name="Helper", model=model, model_settings=settings)
        first = await agents.Runner.run(agent, "What is 2 plus 3?")
        turns: list[Any] = first.to_input_list()
        assert [item["type"] for item in turns if item.get("encrypted_content")] == ["reasoning"]
        second = await agents.Runner.run(agent, [*turns, {"role": "user", "content": "Thank you."}])
        assert second.final_output is not None
