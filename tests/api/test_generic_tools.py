"""Tools in every API, for a model whose chat template shows none: the prompt, the grammar, and the parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lean_ovms.types import Json
from tests.api.conftest import MakeApp, events, parts, post, warnings_of, whole
from tests.fakes import say

SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Json = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
CHAT_TOOL: Json = {"type": "function", "function": FUNCTION}
HI: Json = {"role": "user", "content": "hi"}
CALL = ("<tool_", 'call>\n{"name": "get_wea', 'ther", "arguments": {"city"', ': "Oslo"}}\n</tool_call>')

APIS: dict[str, tuple[str, Json, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": [HI], "tools": [CHAT_TOOL]}, {"tool_choice": "required"}),
    "ovms": (
        "/v3/chat/completions",
        {"messages": [HI], "tools": [CHAT_TOOL]},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    ),
    "responses": (
        "/v1/responses",
        {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
        {"tool_choice": "required"},
    ),
    "messages": (
        "/v1/messages",
        {"max_tokens": 99, "messages": [HI], "tools": [{"name": "get_weather", "input_schema": SCHEMA}]},
        {"tool_choice": {"type": "any"}},
    ),
    "ollama": ("/api/chat", {"messages": [HI], "tools": [CHAT_TOOL]}, {}),
    "cohere": ("/v2/chat", {"messages": [HI], "tools": [CHAT_TOOL]}, {"tool_choice": "REQUIRED"}),
}
each_api = pytest.mark.parametrize("api", APIS)


@each_api
@pytest.mark.parametrize("stream", [False, True])
async def test_any_model_calls(make_app: MakeApp, api: str, stream: bool) -> None:
    path, body, required = APIS[api]
    for choice in ({}, required):
        app, engine = await make_app(say(*CALL))
        response = await post(app, path, {"model": "m", "stream": stream, **body, **choice})
        assert response.status == 200, response.body
        assert not warnings_of(response)
        if stream and api == "ollama":
            shown = b"".join([part async for part in parts(response)]).decode()
        else:
            shown = json.dumps(await (events(response) if stream else whole(response)))
        assert "get_weather" in shown
        assert "tool_call>" not in shown
        assert "Oslo" in shown
        (prompt, _), (tag,) = engine.submitted[0], engine.constraints
        assert '"required": ["city"]' in prompt
        assert "# Tools" in prompt
        form = json.loads(tag)["format"]
        assert form["type"] == ("tag" if choice else "triggered_tags")


async def constraint(make_app: MakeApp, options: Json | None = None, **fields: Any) -> Any:
    """Returns the format that the engine gets, None for none, and checks that there are no warnings."""
    app, engine = await make_app(say("x"), **(options or {}))
    body = {"model": "m", "messages": [HI], "tools": [CHAT_TOOL], **fields}
    response = await post(app, "/v1/chat/completions", body)
    assert response.status == 200, response.body
    await whole(response)
    assert not warnings_of(response)
    (tag,) = engine.constraints
    return json.loads(tag)["format"] if tag else None


async def test_one_call_unless_several_are_asked_for(make_app: MakeApp) -> None:
    assert (await constraint(make_app, tool_choice="required"))["type"] == "tag"
    several = await constraint(make_app, tool_choice="required", parallel_tool_calls=True)
    assert several["elements"][0]["type"] == "tags_with_separator"
    assert (await constraint(make_app))["stop_after_first"] is True
    assert "stop_after_first" not in await constraint(make_app, parallel_tool_calls=True)
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert (await constraint(make_app, tool_choice=named, parallel_tool_calls=True))["type"] == "tag"


@pytest.mark.parametrize(
    ("options", "fields", "held"),
    [
        ({}, {}, True),
        ({"strict_response_format": True}, {}, True),
        ({}, {"tool_choice": "none"}, False),
        ({}, {"min_tokens": 3, "max_tokens": 9}, False),
        ({}, {"use_beam_search": True, "best_of": 2}, False),
        ({}, {"skip_special_tokens": False}, False),
        ({"tool_parser": "hermes3"}, {}, False),
    ],
)
async def test_what_is_held_to_the_schemas_unasked(make_app: MakeApp, options: Json, fields: Json, held: bool) -> None:
    assert (await constraint(make_app, options, **fields) is not None) is held


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_only_who_asks_is_told_what_is_not_imposed(make_app: MakeApp, choice: str) -> None:
    for strict in (False, True):
        app, engine = await make_app(say("x"), strict_response_format=strict)
        engine.notices = ["not"]
        body = {"model": "m", "messages": [HI], "tools": [CHAT_TOOL], "tool_choice": choice}
        response = await post(app, "/v1/chat/completions", body)
        assert (response.status == 400) is (strict and choice == "required")
        warned = bool(warnings_of(response))
        assert warned is (choice == "required" and not strict)
        await whole(response)
