"""Each value that an official SDK declares for a field of a request is taken, or refused for a listed reason.

A value that comes with a new SDK fails here until it is read, or listed.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.sdk_types import examples, members

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": "hi"}]
APART = ("model", "stream", "stream_options", "tools", "messages", "input")
"""Fields whose values are not choices, or that test_sdk_histories has."""
REFUSED = (
    "audio.format must be one of",
    "this model does not generate audio",
    "tool_choice is required, but no tools are given",
    "tool_choice names 'x', which is not in tools",
    "tool_choice.name is not a valid string",
    "is not supported",
    "'x' not found",
    "stored prompt templates are not supported",
    "compaction: this endpoint does not compact conversations",
    "container: this server does not run code",
    "thread: conversations are not stored",
)
"""Reasons for which a value is refused."""


def choices(kind: Any) -> Iterator[Any]:
    """Yields each literal of a field's type, and examples of its objects with each literal of their members."""
    for one in members(kind):
        if typing.get_origin(one) is typing.Literal:
            yield from typing.get_args(one)
        elif typing.is_typeddict(one) or hasattr(one, "__required_keys__"):
            whole_object = max(examples(one, {}), key=len)
            yield whole_object
            for name, hint in typing.get_type_hints(one).items():
                literals = [part for part in members(hint) if typing.get_origin(part) is typing.Literal]
                yield from (whole_object | {name: value} for part in literals for value in typing.get_args(part))


def parameters() -> Iterator[tuple[str, dict[str, Any], Any]]:
    from anthropic.types import message_create_params as messages
    from anthropic.types.beta import message_create_params as beta
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    yield "/v1/chat/completions", {"messages": USER}, chat.CompletionCreateParamsNonStreaming
    yield "/v1/responses", {"input": "hi"}, responses.ResponseCreateParamsNonStreaming
    for module in (messages, beta):
        yield "/v1/messages", {"messages": USER, "max_tokens": 5}, module.MessageCreateParamsNonStreaming


async def test_every_choice_of_an_sdk_is_taken(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"), capable=True)
    refused, count = list[str](), 0
    for path, body, kind in parameters():
        for name, hint in typing.get_type_hints(kind).items():
            for value in () if name in APART else choices(hint):
                count += 1
                response = await post(app, path, {"model": "m", **body, name: value})
                answer = str(await whole(response))
                if response.status != 200 and not any(why in answer for why in REFUSED):
                    refused.append(f"{path} {name}: {response.status} {answer[:200]} for {value}"[:400])
    assert not refused
    assert count > 100
