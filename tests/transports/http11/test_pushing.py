"""Chunks that a body pushes: framed like those that are read, and refused when the client does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lean_ovms.config import Config
from lean_ovms.push_types import Pushing, Sink
from lean_ovms.types import Response
from tests.transports.http11.fakes import JumpLoop, Wire, answering, jump_loop

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def loop() -> Iterator[JumpLoop]:
    with jump_loop() as loop:
        yield loop


class Pushed(Pushing[bytes]):
    """A body that waits for its end, or for what it cannot push."""

    def __init__(self) -> None:
        self.sink: Sink[bytes] | None = None
        self.unread: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = 0

    def push_to(self, sink: Sink[bytes]) -> None:
        self.sink = sink

    def __aiter__(self) -> Pushed:
        return self

    async def __anext__(self) -> bytes:
        if (data := await self.unread.get()) is None:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        self.closed += 1


def opened(loop: JumpLoop, line: bytes = b"GET / HTTP/1.1") -> tuple[Wire, Pushed, Sink[bytes]]:
    body = Pushed()
    it = Wire(loop, answering(Response(200, [], body)), Config(stream_stall_timeout_s=40))
    it.send(line + b"\r\nHost: x\r\n\r\n")
    assert body.sink is not None
    return it, body, body.sink


def test_what_is_pushed_is_sent_in_the_same_turn_between_what_is_read(loop: JumpLoop) -> None:
    it, body, sink = opened(loop)
    assert it.received == HEAD
    sink.push(b"one")
    assert it.received == HEAD + b"3\r\none\r\n"
    body.unread.put_nowait(b"two")
    it.run()
    sink.push(b"3")
    body.unread.put_nowait(None)
    it.run()
    assert it.received == HEAD + b"3\r\none\r\n" + b"3\r\ntwo\r\n" + b"1\r\n3\r\n" + b"0\r\n\r\n"
    assert body.closed == 1
    it.connection.drain()
    it.run()


def test_the_head_goes_with_a_chunk_that_is_pushed_before_it(loop: JumpLoop) -> None:
    class Eager(Pushed):
        def push_to(self, sink: Sink[bytes]) -> None:
            sink.push(b"one")
            self.unread.put_nowait(None)

    it = Wire(loop, answering(Response(200, [], Eager())), Config())
    it.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert it.transport.writes == [HEAD + b"3\r\none\r\n", b"0\r\n\r\n"]
    it.connection.drain()
    it.run()


def test_http_1_0_has_no_frames(loop: JumpLoop) -> None:
    it, body, sink = opened(loop, b"GET / HTTP/1.0")
    sink.push(b"one")
    body.unread.put_nowait(None)
    it.run()
    assert it.received.endswith(b"\r\n\r\none")


def test_a_client_that_does_not_read_is_sent_no_more_until_it_does(loop: JumpLoop) -> None:
    it, body, sink = opened(loop)
    it.transport.room = 0
    assert sink.ready()
    sink.push(b"x" * 70_000)  # more than the transport buffers
    assert not sink.ready()
    body.unread.put_nowait(b"later")  # as a stream does that must not push: its reader takes it, and then waits
    it.run(1)
    assert not sink.ready()
    it.transport.take(None)
    it.run()
    assert sink.ready()
    body.unread.put_nowait(None)
    it.run()
    assert it.received.endswith(b"x\r\n5\r\nlater\r\n0\r\n\r\n")
    it.connection.drain()
    it.run()


def test_nothing_is_pushed_to_a_client_that_has_left(loop: JumpLoop) -> None:
    it, body, sink = opened(loop)
    it.transport.peer_shuts()
    assert not sink.ready()
    it.run()
    assert (body.closed, it.transport.lost) == (1, True)
