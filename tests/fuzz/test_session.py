"""A client's bytes in any cut, and any life of a connection."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lean_ovms.config import Config
from lean_ovms.transports.http11.protocol import Phase
from lean_ovms.types import Request, Response
from tests.fuzz import examples
from tests.fuzz.targets import served
from tests.transports.http11.fakes import Body, Wire, jump_loop

CONFIG = Config(max_header_bytes=1024, max_body_bytes=1024)

METHODS = st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"get", b"G T", b""])
TARGETS = st.sampled_from([b"/", b"/a%20b", b"/%", b"/%ff", b"*", b"http://h/x?y", b"h:1", b"", b"/\x80", b"/#"])
VERSIONS = st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.9", b"HTTP/2.0", b"HTTP/1.", b"http/1.1", b""])
FIELDS = st.sampled_from(
    [
        b"Host: x", b"Host:", b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: 2000",
        b"Content-Length: -1", b"Content-Length: 5,5", b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip", b"Expect: 100-continue", b"Connection: close",
        b"Connection: keep-alive, Upgrade", b"Upgrade: h2c", b" folded", b"X: \xff\x01", b"X : y", b"\x00",
        b"X:" + b"y" * 400,
    ]
)  # fmt: skip
LINE_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])
BODIES = st.sampled_from(
    [
        b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"5\r\nhelloXX", b"0\r\nA: b\r\n\r\n",
        b"401\r\n", b"\r\n",
    ]
)  # fmt: skip


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Generates anything between a correct request and noise."""
    line_end = draw(LINE_ENDS)
    first = b" ".join([draw(METHODS), draw(TARGETS), draw(VERSIONS)])
    lines = [first, b"Host: x", *draw(st.lists(FIELDS, max_size=4))]
    return line_end.join([*lines, b"", b""]) + draw(BODIES)


CONVERSATIONS = st.lists(st.one_of(messages(), messages(), st.binary(max_size=40)), min_size=1, max_size=4).map(
    b"".join
)


def serve(pieces: list[bytes]) -> tuple[list[Request], list[bytes], Phase]:
    return served(pieces, CONFIG)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.slow
@examples(400)
@given(CONVERSATIONS, st.lists(st.integers(0, 4000), max_size=8))
@example(b"\r\n\r", [1, 2])
@example(b"GET / HTTP/1.1\nHost: x\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", [22, 23, 24])
def test_any_bytes_in_any_cut(data: bytes, cuts: list[int]) -> None:
    whole = serve([data])
    requests, refusals, phase = whole
    assert len(refusals) <= 1
    for refusal in refusals:
        assert phase is Phase.CLOSED
        assert refusal[9:10] in b"45"
        assert b"\r\nConnection: close\r\n" in refusal
    assert all(request.path and len(request.body) <= 1024 for request in requests)
    assert serve(cut(data, cuts)) == whole
    assert serve([data[i : i + 1] for i in range(len(data))]) == whole


TINY = Config(
    header_timeout_s=10, body_timeout_s=20, keep_alive_timeout_s=30, stream_stall_timeout_s=40, max_body_bytes=100_000
)
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"

ACTIONS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([REQUEST, CHUNKED, REQUEST + CHUNKED, REQUEST[:30], REQUEST[30:]])),
    st.tuples(st.just("send"), st.sampled_from([b"noise\r\n\r\n", b"\r\n", b"x" * 70_000])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 1.0, 5.0, 15.0, 60.0])),
    st.tuples(st.just("room"), st.sampled_from([0, 100, 10_000, None])),
    st.tuples(st.sampled_from(["shut", "reset", "drain", "give up"]), st.none()),
)
ANSWERS = st.sampled_from(["whole", "large", "slow", "stream", "long stream", "silent stream", "broken", "bug", "late"])


class Life:
    """One run with random behaviour of the client and the handler."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.bodies: list[Body] = []
        self.asked = 0

    async def handle(self, request: Request) -> Response:
        assert request.body == b"hello"
        kind = self.answers[self.asked % len(self.answers)]
        self.asked += 1
        if kind == "bug":
            raise ValueError
        if kind in ("slow", "late"):
            await asyncio.sleep(3)
        if kind in ("whole", "slow"):
            return Response(200, [], b"ok")
        if kind == "large":
            return Response(200, [], b"x" * 200_000)
        script: dict[str, tuple[Any, ...]] = {
            "stream": (b"a", b"b"),
            "late": (1, b"a", 1, b"b"),
            "long stream": (b"x" * 30_000, 0.1) * 10,
            "silent stream": (b"a", 100, b"b"),
            "broken": (b"a", 1, ValueError()),
        }
        self.bodies.append(Body(*script[kind]))
        return Response(200, [], self.bodies[-1])


def act(it: Wire, action: str, value: Any) -> None:
    transport = it.transport
    if action == "wait":
        it.run(value)
    elif action == "room":
        transport.take(value)
    elif action == "drain":
        it.server.draining = True
        it.connection.drain()
    elif action == "give up":
        it.connection.cancel()
    elif transport.closing:
        return
    elif action == "send" and not transport.reading_paused:
        transport.peer_sends(value)
    elif action == "shut" and not transport.reading_paused:
        transport.peer_shuts()
    elif action == "reset":
        transport.peer_resets()


def check_received(data: bytes) -> None:
    """Checks that data consists of answers, of which the last may be unfinished."""
    client = h11.Connection(h11.CLIENT)
    client.receive_data(data) if data else None
    while data:
        client.send(h11.Request(method="POST", target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                return
            if isinstance(event, h11.EndOfMessage):
                break
        data = client.trailing_data[0]
        if client.their_state is not h11.DONE:
            assert data == b""
            return
        client.start_next_cycle()


@pytest.mark.slow
@examples(150)
@given(st.lists(ANSWERS, min_size=1, max_size=4), st.lists(ACTIONS, max_size=12))
def test_every_life_ends_well(answers: list[str], actions: list[tuple[str, Any]]) -> None:
    life = Life(answers)
    with jump_loop() as loop:
        it = Wire(loop, life.handle, TINY)
        for action, value in actions:
            act(it, action, value)
        it.run()
        it.run(1000)  # after all deadlines, any object that is left was leaked
        assert it.transport.lost
        assert (it.server.active_requests, it.server.reserved_bytes, len(it.server.connections)) == (0, 0, 0)
    assert [body.closed for body in life.bodies] == [1] * len(life.bodies)
    check_received(it.received)
