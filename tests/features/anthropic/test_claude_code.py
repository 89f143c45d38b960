"""What Claude Code sends to other endpoints than its own API's, through proxies that translate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import MakeApp, post
from tests.fakes import say

HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=7adab;"


@pytest.mark.parametrize(
    ("role", "content", "seen"),
    [
        ("system", f"{HEADER}\nYou are an agent.", "You are an agent."),
        (
            "system",
            [{"type": "text", "text": HEADER}, {"type": "text", "text": "You are an agent."}],
            "You are an agent.",
        ),
        ("system", f"Quote: {HEADER}", f"Quote: {HEADER}"),
        ("user", HEADER, HEADER),
    ],
)
async def test_a_line_that_changes_with_each_request_of_an_agent_is_left_out(
    make_app: MakeApp, role: str, content: Any, seen: str
) -> None:
    app, engine = await make_app(say("x"))
    messages = [{"role": role, "content": content}, {"role": "user", "content": "hi"}]
    assert (await post(app, "/v1/chat/completions", {"messages": messages})).status == 200
    assert engine.submitted[0][0] == f"{role}:{seen};user:hi;"


async def test_a_server_without_the_feature_knows_no_such_line(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), without="anthropic anthropic_batches")
    messages = [{"role": "system", "content": HEADER}, {"role": "user", "content": "hi"}]
    assert (await post(app, "/v1/chat/completions", {"messages": messages})).status == 200
    assert engine.submitted[0][0] == f"system:{HEADER};user:hi;"
