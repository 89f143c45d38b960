"""Connections to tool servers: no client delays others, and waiting does not count as a server's fault."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.errors import RequestError, StartError
from lean_ovms.features.mcp import sessions
from lean_ovms.features.mcp.feature import McpOptions
from lean_ovms.features.mcp.request import McpTool
from lean_ovms.features.mcp.servers import ToolServer, tool_servers
from lean_ovms.features.mcp.sessions import ListingFailed, ToolFailed, ToolServers, ToolSessions
from lean_ovms.features.responses.tool_forms import ToolOrigin
from lean_ovms.observability.records import RequestRecord, current_record
from tests.waiting import until


class Tools:
    """Answers in place of tool servers. `open` counts connections, `most` their maximum; with `silent` no server
    answers, and with `stays_open` no session ends."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.silent = self.stays_open = False
        self.result: Any = None

    @contextlib.asynccontextmanager
    async def connected(self, tool: Any, timeout_s: float) -> AsyncIterator[Any]:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            yield SimpleNamespace(list_tools=self.answer, call_tool=self.answer)
        finally:
            try:
                await (asyncio.Event().wait() if self.stays_open else asyncio.sleep(0))  # a process takes a while
            finally:
                self.open -= 1

    async def answer(self, *args: Any, **named: Any) -> Any:
        if self.silent:
            await asyncio.Event().wait()
        if isinstance(self.result, Exception):
            raise self.result
        result = 3 if self.result is None else self.result
        return SimpleNamespace(tools=[], next_cursor=None, content=[], structured_content=result, is_error=False)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools()
    monkeypatch.setattr(sessions, "_connected", made.connected)
    monkeypatch.setattr(sessions, "MAX_WAIT_S", 0.02)
    return made


def connected(servers: ToolServers, client: str) -> ToolSessions:
    record = RequestRecord("id", "POST", "/", "", 0.0)
    record.client = client
    token = current_record.set(record)
    try:
        return ToolSessions(servers, [McpTool(label, ToolServer("http://x/"), {}, None, None) for label in "ab"])
    finally:
        current_record.reset(token)


async def test_a_client_with_many_sessions_leaves_some_to_others(tools: Tools) -> None:
    servers = ToolServers(Config(model_name="m", max_tool_sessions=4))
    alices = [connected(servers, "alice") for _ in range(9)]
    found = await asyncio.gather(*(one.list_tools("a") for one in alices), return_exceptions=True)
    refused = [one for one in found if isinstance(one, RequestError)]
    assert (found[:3], len(refused)) == ([[], [], []], 6)
    assert {(one.status, one.code, one.retry_after_s) for one in refused} == {(429, "too_many_tool_sessions", 5)}
    assert "share" in refused[0].message
    bob, carol = connected(servers, "bob"), connected(servers, "carol")
    assert await bob.list_tools("a") == []
    with pytest.raises(RequestError) as caught:
        await carol.list_tools("a")
    assert (caught.value.status, caught.value.code) == (503, "too_many_tool_sessions")
    with pytest.raises(ToolFailed) as failed:  # the call fails, and the model continues without it
        await carol.call(ToolOrigin("t", "a"), "{}")
    assert (
        failed.value.error["code"],
        "responses are already using tool servers" in failed.value.error["message"],
    ) == (503, True)
    waiting = asyncio.ensure_future(carol.call(ToolOrigin("t", "a"), "{}"))
    await asyncio.sleep(0)
    bob.close()
    assert await waiting == "3"
    for one in (*alices, bob, carol):
        one.close()
        one.close()
    await until(lambda: (tools.open, servers.slots.used) == (0, 0))
    assert tools.most == 4


async def test_the_servers_of_a_response_share_a_slot_until_the_last_has_ended(tools: Tools) -> None:
    servers = ToolServers(Config(model_name="m", max_tool_sessions=1))
    one = connected(servers, "alice")
    await asyncio.gather(one.list_tools("a"), one.list_tools("b"))
    assert (tools.open, servers.slots.used) == (2, 1)
    one.close()
    assert servers.slots.used == 1
    await until(lambda: (tools.open, servers.slots.used) == (0, 0))


async def test_a_tool_server_has_its_own_time_after_the_wait(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_WAIT_S", 60)
    servers = ToolServers(Config(model_name="m", max_tool_sessions=1))
    first, second = connected(servers, "alice"), connected(servers, "bob")
    await first.list_tools("a")
    servers.timeout_s = 1e-9
    waiting = asyncio.ensure_future(second.list_tools("a"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    servers.timeout_s = 60.0
    first.close()
    assert await waiting == []
    tools.silent, servers.timeout_s = True, 1e-9
    with pytest.raises(ListingFailed, match="no answer within"):
        await second.list_tools("a")
    second.close()
    await until(lambda: servers.slots.used == 0)


async def test_a_response_that_ends_while_it_waits_takes_no_slot(tools: Tools) -> None:
    servers = ToolServers(Config(model_name="m", max_tool_sessions=1))
    first, second = connected(servers, "alice"), connected(servers, "bob")
    await first.list_tools("a")
    waiting = asyncio.ensure_future(second.list_tools("a"))
    await asyncio.sleep(0)
    first.close()
    second.close()
    waiting.cancel()
    await asyncio.wait([waiting])
    await until(lambda: servers.slots.used == 0)
    assert tools.open == 0


async def test_a_server_that_never_ends_its_session_is_cut_off(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CLOSE_S", 0.01)
    tools.stays_open = True
    servers = ToolServers(Config(model_name="m", max_tool_sessions=1))
    first = connected(servers, "alice")
    await first.list_tools("a")
    first.close()
    await until(lambda: (tools.open, servers.slots.used) == (0, 0))
    second = connected(servers, "bob")
    await second.list_tools("a")
    await servers.close()
    second.close()
    assert (tools.open, servers.slots.used) == (0, 0)


async def test_a_connection_that_is_closed_before_it_is_open_fails_its_calls(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def slow(tool: Any, timeout_s: float) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(sessions, "_connected", slow)
    servers = ToolServers(Config(model_name="m"))
    one = connected(servers, "alice")
    waiting = asyncio.ensure_future(one.call(ToolOrigin("t", "a"), "{}"))
    await until(lambda: bool(servers.connections))
    await servers.close()
    with pytest.raises(ToolFailed, match="cannot be used"):
        await waiting
    one.close()


class McpError(Exception):
    """An error of the package mcp."""

    code = -32000


async def test_results_and_errors_are_text_of_limited_length(tools: Tools) -> None:
    servers = ToolServers(Config(model_name="m", max_tool_output=100))
    one = connected(servers, "alice")
    tools.result = {"ok": True, "none": None, "large": 1 << 70}
    assert await one.call(ToolOrigin("t", "a"), "{}") == '{"ok": true, "none": null, "large": 1180591620717411303424}'
    tools.result = McpError("x" * 900)
    with pytest.raises(ToolFailed) as caught:
        await one.call(ToolOrigin("t", "a"), "{}")
    assert caught.value.error["message"] == "x" * 100 + "\n[800 characters left out]"
    one.close()
    await until(lambda: not servers.connections)


async def test_lists_are_read_page_by_page_up_to_a_limit() -> None:
    asked: list[str | None] = []

    async def ask(cursor: str | None) -> Any:
        asked.append(cursor)
        return SimpleNamespace(tools=[cursor] * 400, next_cursor="abcdef"[len(asked)])

    assert len(await sessions.all_pages(ask, "tools")) == 1000
    assert asked == [None, "b", "c"]


# --- --tool_server


def servers(argv: list[str], environ: dict[str, str]) -> dict[str, ToolServer]:
    """Returns the servers of a command line."""
    return tool_servers(parse(argv, environ).of(McpOptions).tool_server)


def test_the_option_is_repeated_or_has_several_servers() -> None:
    argv = ["--tool_server", "docs=https://x/mcp?a=b", "--tool-server", "files=npx -y 'my server' --a=b \"KEY=v\""]
    found = servers(argv, {})
    assert found == {
        "docs": ToolServer("https://x/mcp?a=b"),
        "files": ToolServer("", ("npx", "-y", "my server", "--a=b", "KEY=v")),
    }
    given = {"LEAN_OVMS_TOOL_SERVER": "a=http://x b=http://y"}
    assert servers([], given) == tool_servers("  a=http://x  b=http://y ")
    assert tool_servers("") == {}


WRONG = [
    ("npx", "NAME=URL"),
    ("1a=http://x", "NAME=URL"),
    ("a=", "needs the URL"),
    ("a=ftp://x", "needs the URL"),
    ("a='x", "cannot be read"),
    ("a=x a=y", "used twice"),
]


def test_what_is_wrong_stops_the_start() -> None:
    for text, problem in WRONG:
        with pytest.raises(StartError, match=f"--tool_server: .*{problem}"):
            parse(["--tool_server", text], {})
