"""WebSockets without sockets: however one side ends, the other one learns of it and waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lean_ovms.features.embed.websocket import MAX_UNREAD, Closed, connect
from lean_ovms.features.websocket.channel import MAX_QUEUED_MESSAGES
from lean_ovms.features.websocket.types import Close, Upgrade, WebSocket
from lean_ovms.types import Handle, Request, Response

REQUEST = Request("GET", "/v1/realtime")
DONE = Close(4000, "done")


def opening(serve: Callable[[WebSocket], Awaitable[Close]], ended: asyncio.Event | None = None) -> Handle:
    """Returns a handler that opens a WebSocket, and sets `ended` when the server has closed it."""

    async def handle(request: Request) -> Response:
        upgrade = Upgrade(serve)
        if ended is not None:
            upgrade.on_close.append(ended.set)
        return upgrade

    return handle


async def close_at_once(websocket: WebSocket) -> Close:
    return DONE


async def test_messages_that_arrive_before_the_close_are_received_and_then_only_the_close() -> None:
    async def serve(websocket: WebSocket) -> Close:
        await websocket.send(b"one", b" piece")
        return DONE

    async with connect(opening(serve), REQUEST) as websocket:
        assert await websocket.receive() == "one piece"
        for _ in range(2):
            with pytest.raises(Closed) as closed:
                await websocket.receive()
            assert closed.value.close == DONE


async def test_a_client_that_has_not_received_anything_can_leave_a_closed_websocket() -> None:
    async def serve(websocket: WebSocket) -> Close:
        for _ in range(MAX_UNREAD):
            await websocket.send(b"unread")
        return DONE

    async def leave() -> None:
        ended = asyncio.Event()
        async with connect(opening(serve, ended), REQUEST):
            await ended.wait()

    await asyncio.wait_for(leave(), 5)


async def test_a_message_after_the_close_is_an_error_although_the_close_was_not_received() -> None:
    ended = asyncio.Event()
    async with connect(opening(close_at_once, ended), REQUEST) as websocket:
        await ended.wait()
        with pytest.raises(Closed, match="done"):
            await websocket.send("lost")


async def test_a_message_that_waits_for_room_is_an_error_when_the_server_closes() -> None:
    full = asyncio.Event()

    async def serve(websocket: WebSocket) -> Close:
        await full.wait()
        return DONE

    async with connect(opening(serve), REQUEST) as websocket:
        for _ in range(MAX_QUEUED_MESSAGES):
            await websocket.send("unread")
        waiting = asyncio.ensure_future(websocket.send("one too many"))
        full.set()
        with pytest.raises(Closed, match="done"):
            await asyncio.wait_for(waiting, 5)


async def test_a_server_that_sends_too_much_waits_until_the_client_receives() -> None:
    sent = 0

    async def serve(websocket: WebSocket) -> Close:
        nonlocal sent
        for _ in range(MAX_UNREAD + 1):
            await websocket.send(b"text")
            sent += 1
        return DONE

    async with connect(opening(serve), REQUEST) as websocket:
        for _ in range(MAX_UNREAD + 10):
            await asyncio.sleep(0)
        assert sent == MAX_UNREAD
        for _ in range(MAX_UNREAD + 1):
            assert await websocket.receive() == "text"
