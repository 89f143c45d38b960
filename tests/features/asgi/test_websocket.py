"""WebSockets over ASGI: message by message, and once behind uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.routing import Mount

from lean_ovms.errors import TooManyRequests, error_response
from lean_ovms.features.asgi.adapter import Asgi
from lean_ovms.features.websocket.types import Upgrade
from lean_ovms.types import Request, Response
from tests.features.websocket.fakes import Echo


class Greeter(Echo):
    """An Echo with a subprotocol and a header. `requests` has the handshakes; with `refusal`, it refuses them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.refusal: Response | None = None
        self.size = 100

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        upgrade = await super().handle(request)
        if self.refusal is not None:
            return self.refusal
        assert isinstance(upgrade, Upgrade)
        upgrade.subprotocol = "realtime"
        upgrade.headers.append(("X-Request-Id", "7"))
        return upgrade


class Host:
    """Stands for an ASGI host. `sent` has the app's messages."""

    def __init__(self, echo: Greeter, *, denies: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.messages.put_nowait({"type": "websocket.connect"})
        self.gone = False
        scope = {
            "type": "websocket",
            "path": "/app/ws",
            "root_path": "/app",
            "query_string": b"a=b",
            "headers": [(b"host", b"x")],
            "subprotocols": ["realtime", "other"],
            "extensions": {"websocket.http.response": {}} if denies else {},
            "client": ("192.0.2.7", 4711),
        }
        self.call = asyncio.ensure_future(Asgi(echo.handle, 1 << 20)(scope, self.messages.get, self._send))

    async def _send(self, message: Any) -> None:
        if self.gone:
            raise OSError("the client has left")
        self.sent.append(message)

    async def text(self, text: str) -> None:
        self.messages.put_nowait({"type": "websocket.receive", "text": text})
        for _ in range(20):
            await asyncio.sleep(0)


async def test_messages_and_the_servers_close() -> None:
    echo = Greeter()
    host = Host(echo)
    await host.text("ä")
    host.messages.put_nowait({"type": "websocket.receive", "bytes": b"\0"})
    await host.text("bye")
    await asyncio.wait_for(host.call, 300)
    assert host.sent == [
        {"type": "websocket.accept", "headers": [(b"x-request-id", b"7")], "subprotocol": "realtime"},
        {"type": "websocket.send", "text": "ä"},
        {"type": "websocket.send", "text": "\0"},
        {"type": "websocket.close", "code": 4000, "reason": "as you wish"},
    ]
    [request] = echo.requests
    assert (request.path, request.query, request.upgrade) == ("/ws", "a=b", "websocket")
    assert request.headers["sec-websocket-protocol"] == "realtime, other"
    assert echo.closed == 1


async def test_a_client_that_leaves_cancels_the_handler() -> None:
    echo = Greeter()
    host = Host(echo)
    await host.text("one")
    host.messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await asyncio.wait_for(host.call, 300)
    assert (echo.cancelled, echo.closed) == (1, 1)
    assert host.sent[-1]["type"] == "websocket.send"  # nothing is sent to a client that has left


async def test_a_host_whose_send_fails() -> None:
    echo = Greeter()
    host = Host(echo)
    await host.text("one")
    host.gone = True
    await host.text("two")
    await asyncio.wait_for(host.call, 300)
    assert (echo.cancelled, echo.closed) == (1, 1)


async def test_a_message_that_is_too_big() -> None:
    host = Host(Greeter())
    await host.text("ä" * 51)
    await asyncio.wait_for(host.call, 300)
    assert host.sent[-1]["code"] == 1009


async def test_a_handler_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(Greeter())
    await host.text("boom")
    await asyncio.wait_for(host.call, 300)
    assert host.sent[-1] == {"type": "websocket.close", "code": 1011, "reason": "internal error"}
    assert "ZeroDivisionError" in caplog.text


async def test_a_host_that_stops() -> None:
    echo = Greeter()
    host = Host(echo)
    await host.text("one")
    host.call.cancel()
    await asyncio.wait({host.call})
    assert host.sent[-1]["code"] == 1001
    assert (echo.cancelled, echo.closed) == (1, 1)


@pytest.mark.parametrize("denies", [True, False])
async def test_a_refusal_keeps_its_status_where_the_host_can(denies: bool) -> None:
    echo = Greeter()
    echo.refusal = error_response(TooManyRequests("too many"))
    host = Host(echo, denies=denies)
    await asyncio.wait_for(host.call, 300)
    if not denies:
        assert host.sent == [{"type": "websocket.close", "code": 1000}]
        return
    start, body = host.sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert (b"retry-after", b"1") in start["headers"]
    assert b"too many" in body["body"]


@contextlib.asynccontextmanager
async def uvicorn_with(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="websockets-sansio"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.mark.slow
async def test_behind_uvicorn_inside_a_starlette_mount() -> None:
    echo = Greeter()
    app = Starlette(routes=[Mount("/app", Asgi(echo.handle, 1 << 20))])
    async with uvicorn_with(app) as url:
        async with websockets.connect(f"{url}/app/ws", subprotocols=["realtime"]) as client:  # type: ignore[list-item]
            await client.send("hello")
            assert await client.recv() == "hello"
            await client.send("bye")
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4000
        echo.refusal = error_response(TooManyRequests("too many"))
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(f"{url}/app/ws")
    assert refused.value.response.status_code == 429
    assert echo.closed == 1
