"""An agent framework over HTTP with the demo model: a tool loop with pydantic-ai, on three APIs.

It builds requests in its own way, and parses answers strictly. Only the address is configured. Skipped without the
extra `frameworks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.e2e.conftest import Process

if TYPE_CHECKING:
    import anthropic

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("default")]
pytest.importorskip("pydantic_ai")

QUESTION = "What is the weather in Oslo?"
ANSWER = '{"weather": "sunny"}'


def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: its name
    """
    return ANSWER if city == "Oslo" else "{}"


def chat(client: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("demo", provider=OpenAIProvider(openai_client=client))


def responses(client: openai.AsyncOpenAI, _: anthropic.AsyncAnthropic) -> Any:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIResponsesModel("demo", provider=OpenAIProvider(openai_client=client))


def messages(_: openai.AsyncOpenAI, client: anthropic.AsyncAnthropic) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel("demo", provider=AnthropicProvider(anthropic_client=client))


@pytest.mark.parametrize("make", [chat, responses, messages])
@pytest.mark.parametrize("stream", [False, True])
async def test_pydantic_ai_runs_a_tool_and_answers(server: Process, make: Callable[..., Any], stream: bool) -> None:
    import anthropic
    from pydantic_ai import Agent

    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as one,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as other,
    ):
        settings: Any = {"temperature": 0, "max_tokens": 200}
        agent = Agent(make(one, other), tools=[get_weather], model_settings=settings)
        if stream:
            async with agent.run_stream(QUESTION) as result:
                text = await result.get_output()
        else:
            result = await agent.run(QUESTION)
            text = result.output
    assert "sunny" in text
    called = [part for message in result.all_messages() for part in message.parts if part.part_kind == "tool-call"]
    assert [(part.tool_name, part.args_as_dict()) for part in called] == [("get_weather", {"city": "Oslo"})]
    usage = result.usage
    assert (usage.requests, usage.input_tokens > 0, usage.output_tokens > 0) == (2, True, True)
