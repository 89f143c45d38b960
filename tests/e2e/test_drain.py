"""A server that stops: requests that take too long end with an error, in streams as the last event of each API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.server.run import build, close, load
from lean_ovms.types import Request, Response
from tests.api.conftest import post, whole
from tests.streams import pieces

CHAT = [{"role": "user", "content": "hi"}]
STREAMS = {
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 4000},
    "/v1/completions": {"prompt": "hi", "max_tokens": 4000},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4000},
    "/v1/messages": {"messages": CHAT, "max_tokens": 4000},
    "/v2/chat": {"messages": CHAT, "max_tokens": 4000},
    "/api/chat": {"messages": CHAT, "options": {"num_predict": 4000}},
    "/api/generate": {"prompt": "hi", "options": {"num_predict": 4000}},
    "/completion": {"prompt": "hi", "n_predict": 4000},
}
"""A streaming request for each API."""
ERROR = "The server is shutting down."


async def events(response: Response, began: asyncio.Event) -> str:
    """Reads a stream to its end, and returns the last lines."""
    assert response.status == 200
    text = b""
    assert not isinstance(response.body, bytes)
    async for piece in pieces(response.body):
        text += piece
        began.set()
    await response.aclose()
    return "\n".join(text.decode().strip().splitlines()[-4:])


@pytest.mark.slow
async def test_every_request_has_one_outcome_when_the_server_does_not_wait_any_longer() -> None:
    script = json.dumps({"step_s": 0.05, "answer": "x " * 5000})
    app = build(Config(fake_engine=True, model_name="m", plugin_config=script))
    try:
        await load(app)
        reading: dict[str, asyncio.Task[str]] = {}
        began: list[asyncio.Event] = []
        for path, body in STREAMS.items():
            began.append(asyncio.Event())
            response = await post(app, path, {"model": "m", "stream": True, **body})
            reading[path] = asyncio.create_task(events(response, began[-1]))
        unary = asyncio.create_task(
            post(app, "/v1/chat/completions", {"model": "m", **STREAMS["/v1/chat/completions"]})
        )
        for each in began:
            await asyncio.wait_for(each.wait(), 300)
        await app.end()
        last = dict(zip(reading, await asyncio.gather(*reading.values()), strict=True))
        assert {path: text for path, text in last.items() if ERROR not in text} == {}
        assert '"type":"response.failed"' in last["/v1/responses"]
        assert "event: error" in last["/v1/messages"]
        answer: Any = await unary
        assert (answer.status, (await whole(answer))["error"]["code"]) == (503, "shutting_down")
        late = await app.handle(Request("GET", "/v2/health/ready"))
        assert late.status == 503
    finally:
        await close(app)
