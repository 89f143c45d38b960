"""Chunks that a body pushes are framed and sent at once, but not while the client does not read."""

from __future__ import annotations

import asyncio

from lean_ovms.config import Config
from lean_ovms.types import Response
from lean_ovms.types.push import Sink
from tests.transports.http11.fakes import JumpLoop, Wire, answering, undated

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Pushed:
    """A body that the test pushes, to its end."""

    def __init__(self) -> None:
        self.sink: Sink[bytes] | None = None
        self.ended = asyncio.Event()
        self.closed = 0

    async def push_to(self, sink: Sink[bytes]) -> None:
        self.sink = sink
        await self.ended.wait()

    async def aclose(self) -> None:
        self.closed += 1


def opened(loop: JumpLoop, line: bytes = b"GET / HTTP/1.1") -> tuple[Wire, Pushed, Sink[bytes]]:
    body = Pushed()
    it = Wire(loop, answering(Response(200, [], body)), Config(stream_stall_timeout_s=40))
    it.send(line + b"\r\nHost: x\r\n\r\n")
    assert body.sink is not None
    return it, body, body.sink


def test_what_is_pushed_is_sent_in_the_same_turn(loop: JumpLoop) -> None:
    it, body, sink = opened(loop)
    assert undated(it.received) == HEAD
    sink.push(b"one")
    assert undated(it.received) == HEAD + b"3\r\none\r\n"
    sink.push(b"")  # empty data would end a chunked body
    sink.push(b"3")
    assert undated(it.received) == HEAD + b"3\r\none\r\n" + b"1\r\n3\r\n"
    body.ended.set()
    it.run()
    assert it.received.endswith(b"1\r\n3\r\n" + b"0\r\n\r\n")
    assert body.closed == 1


def test_the_sink_is_paused_while_the_client_does_not_read(loop: JumpLoop) -> None:
    it, body, sink = opened(loop)
    it.transport.room = 0
    assert sink.paused() is None
    sink.push(b"x" * 70_000)  # more than the transport buffers
    paused = sink.paused()
    assert paused is not None
    it.run(1)
    assert not paused.done()
    it.transport.take(None)
    it.run()
    assert paused.done()
    assert sink.paused() is None
    sink.push(b"later")
    body.ended.set()
    it.run()
    assert it.received.endswith(b"x\r\n5\r\nlater\r\n0\r\n\r\n")


def test_a_body_that_sends_waits_for_the_client(loop: JumpLoop) -> None:
    class Sending(Pushed):
        sent = 0

        async def push_to(self, sink: Sink[bytes]) -> None:
            for piece in (b"x" * 70_000, b"one", b"two"):
                await sink.send(piece)
                self.sent += 1

    body = Sending()
    it = Wire(loop, answering(Response(200, [], body)), Config(stream_stall_timeout_s=40))
    it.transport.room = 0
    it.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1)
    assert body.sent == 0
    it.transport.take(None)
    it.run()
    assert body.sent == 3
    assert it.received.endswith(b"x\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


def test_nothing_is_sent_to_a_client_that_has_left(loop: JumpLoop) -> None:
    it, body, sink = opened(loop)
    before = it.received
    it.transport.peer_shuts()
    sink.push(b"one")
    assert it.received == before
    it.run()
    assert (body.closed, it.transport.lost) == (1, True)
