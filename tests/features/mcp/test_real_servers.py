"""Tools of real MCP servers: that of tool_server.py, over stdin and at a URL."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import uvicorn

from lean_ovms.api.app import App
from lean_ovms.features.mcp.sessions import ToolServers
from tests.api.conftest import MakeApp, parts, post
from tests.fakes import say
from tests.features.mcp.test_responses import CALC, answered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVER = "tests.features.mcp.tool_server"
COMMAND = f"calc={sys.executable} -m {SERVER}"
DEADLINE_S = 240.0


def wanted(name: str, **arguments: Any) -> Any:
    call = orjson.dumps({"name": f"calc__{name}", "arguments": arguments}).decode()
    return say(f"<tool_call>{call}</tool_call>")


async def made(make_app: MakeApp, *scripts: Any, **options: Any) -> App:
    left = list(scripts)
    options = {"tool_parser": "hermes3", "tool_server": COMMAND, "tool_timeout_s": DEADLINE_S, **options}
    app, _ = await make_app(lambda prompt, sampling: left.pop(0), **options)
    return app


async def ended(app: App) -> None:
    """Returns when no connection is left."""
    connections = app.services.states[ToolServers].connections
    await asyncio.wait_for(asyncio.gather(*(connection.wait_closed() for connection in connections)), DEADLINE_S)
    assert not connections
    for _ in range(10):  # asyncio closes the transport of a process a few iterations after its pipes
        await asyncio.sleep(0)


async def test_a_server_by_its_stdin(make_app: MakeApp) -> None:
    app = await made(
        make_app, wanted("add", a=1, b=2), wanted("fail", reason="no"), wanted("write", count=900), wanted("add", a=1),
        say("done"), max_tool_output=100,
    )  # fmt: skip
    found = await answered(app)
    listing, *calls, message = found["output"]
    assert [tool["name"] for tool in listing["tools"]] == ["add", "fail", "write", "wait", "leave"]
    assert listing["tools"][0]["annotations"] == {"readOnlyHint": True}
    assert listing["tools"][0]["input_schema"]["required"] == ["a", "b"]
    assert [call["status"] for call in calls] == ["completed", "failed", "completed", "failed"]
    assert calls[0]["output"] == "3"
    assert "no" in calls[1]["error"]["content"][0]["text"]
    assert calls[2]["output"] == "x" * 100 + "\n[800 characters left out]"
    assert message["content"][0]["text"] == "done"
    await ended(app)


async def test_a_server_that_ends_in_a_call(make_app: MakeApp) -> None:
    app = await made(make_app, wanted("leave"), wanted("add", a=1, b=2), say("done"))
    _, first, second, message = (await answered(app))["output"]
    assert first["status"] == second["status"] == "failed"  # within a response, a server is connected only once
    assert message["type"] == "message"
    await ended(app)


async def test_a_client_that_leaves_ends_the_server(make_app: MakeApp) -> None:
    app = await made(make_app, wanted("wait"))
    body = {"model": "m", "input": "hi", "tools": [CALC], "stream": True}
    response = await post(app, "/v1/responses", body)
    async for part in parts(response):
        if b"arguments.done" in part:
            break
    await response.aclose()
    await ended(app)


@pytest.mark.parametrize("command", ["no-such-command-here", f"{sys.executable} -c pass", "http://127.0.0.1:9/mcp"])
async def test_a_server_that_cannot_be_used(make_app: MakeApp, command: str) -> None:
    app = await made(make_app, tool_server=f"calc={command}")
    error = (await answered(app, 424))["error"]
    assert error["code"] == "mcp_list_tools_failed"
    assert "127.0.0.1" not in error["message"]
    assert "no-such" not in error["message"]
    await ended(app)


class Http:
    """A server at a URL that requires a token, and records the headers of its requests."""

    def __init__(self) -> None:
        from tests.features.mcp.tool_server import server

        self._app = server.streamable_http_app(stateless_http=True)
        self.requests: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.requests.append({name.decode(): value.decode() for name, value in scope["headers"]})
            if self.requests[-1].get("authorization") != "Bearer t0ken":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"no"})
                return
        await self._app(scope, receive, send)


@asynccontextmanager
async def listening(app: Http) -> AsyncIterator[str]:
    """Yields the URL."""
    http = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="on"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.ensure_future(http.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            http.should_exit = True
            await asyncio.wait_for(task, DEADLINE_S)


async def test_a_server_at_a_url(make_app: MakeApp) -> None:
    http = Http()
    async with listening(http) as url:
        app = await made(make_app, wanted("add", a=1, b=2), say("done"), tool_server=f"x={url}")
        tool = {**CALC, "server_url": url}
        assert (await answered(app, 424, tools=[tool]))["error"]["code"] == "mcp_list_tools_failed"
        found = await answered(app, tools=[{**tool, "authorization": "t0ken", "headers": {"X-Team": "a"}}])
        assert found["output"][1]["output"] == "3"
        assert http.requests[-1]["x-team"] == "a"
        await ended(app)
        limited = await made(make_app, wanted("wait"), say("done"), tool_server=f"x={url}", tool_timeout_s=0.3)
        listing = found["output"][0]
        found = await answered(
            limited, tools=[{**tool, "authorization": "t0ken"}], input=[listing, {"role": "user", "content": "hi"}]
        )
        assert (found["output"][0]["status"], found["output"][0]["error"]["code"]) == ("failed", 504)
        await ended(limited)
