"""Fields that llama.cpp's clients send to chat and completions: other names, and fields that control parsing."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.features.llama_cpp.feature import FEATURE
from lean_ovms.features.llama_cpp.other_names import FIELDS
from tests.api.conftest import MakeApp, events, post, warnings_of, whole
from tests.fakes import say

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"n_predict": 6, "max_tokens": 6}, {"max_tokens": 6}),
        ({"n_predict": -1}, {"max_tokens": None}),
        ({"n_predict": 0}, {"max_tokens": 1}),
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"n_cmpl": 2}, {"n": 2}),
        ({"reasoning_budget_tokens": 7}, {"thinking_token_budget": 7}),
        ({"thinking_budget_tokens": 8}, {"thinking_token_budget": 8}),
        ({"cache_prompt": True, "id_slot": 0, "n_keep": 1, "sse_ping_interval": 5}, {}),
    ],
)
async def test_other_names(make_app: MakeApp, path: str, fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    options = {"capable": True, "reasoning_parser": "qwen3"}
    app, engine = await make_app(lambda _, sampling: say("x", sequences=sampling.n), **options)
    response = await post(app, path, {**ASKED, **fields})
    assert response.status == 200, response.body
    assert "Warning" not in dict(response.headers)
    [(_, sampling)] = engine.submitted
    assert {name: getattr(sampling, name) for name in wanted} == wanted


def test_the_manifest_has_their_names() -> None:
    assert FEATURE.body is not None
    assert FEATURE.body.names == tuple(field.name for field in FIELDS)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_name_that_is_overruled_is_told(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True)
    body = {**ASKED, "n_predict": 3, "max_tokens": 5, "repeat_penalty": 1.5, "repetition_penalty": 2}
    response = await post(app, path, body)
    warnings = " ".join(warnings_of(response))
    assert "n_predict has no effect: max_tokens has precedence" in warnings
    assert "repeat_penalty has no effect: repetition_penalty has precedence" in warnings
    [(_, sampling)] = engine.submitted
    assert (sampling.max_tokens, sampling.repetition_penalty) == (5, 2)
    response = await post(app, path, {**ASKED, "n_predict": 5, "max_tokens": 5})
    assert "Warning" not in dict(response.headers)
    if path == CHAT:  # which has a newer name of the limit
        response = await post(app, CHAT, {**ASKED, "n_predict": 3, "max_completion_tokens": 5})
        [told] = warnings_of(response)
        assert "n_predict has no effect: max_completion_tokens has precedence" in told
        assert engine.submitted[-1][1].max_tokens == 5


async def test_a_server_without_the_feature_does_not_know_them(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True, without="llama_cpp")
    response = await post(app, CHAT, {**ASKED, "reasoning_format": "x", "n_predict": 3})
    assert response.status == 200
    assert "reasoning_format is not a field of this endpoint" in dict(response.headers)["Warning"]
    assert engine.submitted[0][1].max_tokens != 3


@pytest.mark.parametrize(
    ("fields", "content", "reasoning", "calls"),
    [
        ({}, "", "hm", ["f"]),
        ({"reasoning_format": "deepseek", "parse_tool_calls": True}, "", "hm", ["f"]),
        ({"reasoning_format": "none"}, THOUGHT, None, ["f"]),
        ({"parse_tool_calls": False}, CALL, "hm", []),
        ({"reasoning_format": "none", "parse_tool_calls": False}, THOUGHT + CALL, None, []),
    ],
)
async def test_what_is_parsed(
    make_app: MakeApp, fields: dict[str, Any], content: str, reasoning: str | None, calls: list[str]
) -> None:
    app, _ = await make_app(lambda *_: say(THOUGHT, CALL), reasoning_parser="qwen3", tool_parser="hermes3")
    body = {**ASKED, "tools": TOOLS, **fields}
    message = (await whole(await post(app, CHAT, body)))["choices"][0]["message"]
    assert message["content"].strip() == content.strip()
    assert (message.get("reasoning_content") or "").strip() == (reasoning or "")
    assert [call["function"]["name"] for call in message["tool_calls"]] == calls
    streamed = [e for e in await events(await post(app, CHAT, {**body, "stream": True})) if e != "[DONE]"]
    deltas = [choice["delta"] for event in streamed for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == content.strip()
