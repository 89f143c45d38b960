"""The tool servers for clients that run the calls of a chat themselves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

from lean_ovms.features.mcp import sessions
from lean_ovms.types import Json
from tests.api.conftest import MakeApp, get, post, whole
from tests.fakes import say
from tests.features.anthropic.conftest import AppTransport
from tests.features.mcp.test_real_servers import ended, made, wanted
from tests.features.mcp.test_responses import CALC

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def connected(tool: Any, timeout_s: float) -> AsyncIterator[Any]:
    """Connects to the server in this process, except to one that is broken."""
    import mcp  # takes a second of CPU time, also in a process that runs none of these tests

    from tests.features.mcp.tool_server import server

    if tool.label == "broken":
        raise OSError("broken")
    async with mcp.Client(server) as client:
        yield client


async def test_what_a_server_has_is_listed_called_and_read(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_connected", connected)
    app, _ = await make_app(tool_server="calc=x broken=y", max_tool_output=100)

    async def asked(path: str, status: int = 200, **body: Any) -> Json:
        response = await post(app, f"/v1/tool_servers/{path}", {"server": "calc", **body})
        found: Json = await whole(response)
        assert response.status == status, found
        return found

    calc, other = (await whole(await get(app, "/v1/tool_servers")))["data"]
    assert [one["name"] for one in calc["tools"]] == ["add", "fail", "write", "wait", "leave"]
    [prompt] = calc["prompts"]
    assert (prompt["name"], prompt["arguments"][0]["name"], prompt["arguments"][0]["required"]) == (
        "explain",
        "topic",
        True,
    )
    assert [one["uri"] for one in calc["resources"]] == ["notes://today", "notes://picture"]
    assert (other["name"], other["tools"], bool(other["error"])) == ("broken", [], True)

    assert await asked("call", name="add", arguments={"a": 1, "b": 2}) == {"output": "3", "is_error": False}
    failed = await asked("call", name="fail", arguments={"reason": "no way"})
    assert (failed["is_error"], "no way" in failed["output"]) == (True, True)
    long = await asked("call", name="write", arguments={"count": 900})
    assert long["output"] == "x" * 100 + "\n[800 characters left out]"
    found = await asked("prompt", name="explain", arguments={"topic": "cats"})
    assert found == {"messages": [{"role": "user", "content": "Explain cats in one sentence."}]}
    assert await asked("resource", uri="notes://today") == {"text": "Feed the cat."}

    assert (await asked("resource", 400, uri="notes://picture"))["error"]["message"] == "the resource is not text"
    error = (await asked("resource", 424, uri="notes://nothing"))["error"]
    assert (error["type"], error["code"]) == ("external_connector_error", "mcp_request_failed")
    assert (await asked("call", 404, server="x", name="add"))["error"]["param"] == "server"
    assert (await asked("call", 400, name="add", arguments=[]))["error"]["param"] == "arguments"
    await ended(app)


async def test_a_server_may_have_no_tool_servers(make_app: MakeApp) -> None:
    app, _ = await make_app()
    assert (await whole(await get(app, "/v1/tool_servers")))["data"] == []
    assert (await post(app, "/v1/tool_servers/call", {"server": "calc", "name": "add"})).status == 404
    assert (await whole(await get(app, "/web/actions"))).keys() & {"tool_servers", "call_tool"} == set()


async def test_with_openais_client(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_connected", connected)
    app = await made(make_app, wanted("add", a=1, b=2), say("three"), say("bye"))
    async with openai.AsyncOpenAI(
        base_url="http://app/v1", api_key="none", http_client=httpx2.AsyncClient(transport=AppTransport(app))
    ) as client:
        tools: Any = [CALC]
        async with client.responses.stream(model="m", input="hi", tools=tools) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert {"response.mcp_list_tools.completed", "response.mcp_call.completed"} <= set(kinds)
        assert [item.type for item in final.output] == ["mcp_list_tools", "mcp_call", "message"]
        assert final.output_text == "three"
        again = await client.responses.create(model="m", input="bye", previous_response_id=final.id, tools=tools)
        assert [item.type for item in again.output] == ["message"]
    await ended(app)
