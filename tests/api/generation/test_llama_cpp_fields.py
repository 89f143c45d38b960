"""Fields of llama.cpp's clients in chat and completions: other names, and what is parsed out of the text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakeApp, events, post, whole
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
        ({"cache_prompt": True, "id_slot": 0, "n_keep": 1, "sse_ping_interval": 5}, {}),
    ],
)
async def test_other_names(make_app: MakeApp, path: str, fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True)
    response = await post(app, path, {**ASKED, **fields})
    assert response.status == 200, response.body
    assert "Warning" not in dict(response.headers)
    [(_, sampling)] = engine.submitted
    assert {name: getattr(sampling, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("fields", "param"), [({"n_predict": -2}, "n_predict"), ({"reasoning_format": "x"}, "reasoning_format")]
)
async def test_a_wrong_value_is_named(make_app: MakeApp, fields: dict[str, Any], param: str) -> None:
    app, _ = await make_app()
    response = await post(app, CHAT, {**ASKED, **fields})
    assert (response.status, (await whole(response))["error"]["param"]) == (400, param)


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
