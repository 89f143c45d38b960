"""Connections with a fake transport in virtual time: timers, flow control, disconnects, failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import Forbidden, TooManyRequests, Unavailable
from lean_ovms.transports.http11.connection import LINGER_S, MAX_AHEAD_BYTES, TURN_BYTES
from lean_ovms.types import Handle, Request, Response
from tests.transports.http11.fakes import Body, JumpLoop, Wire, answering, undated

CONFIG = Config(
    header_timeout_s=10,
    body_timeout_s=20,
    keep_alive_timeout_s=30,
    stream_stall_timeout_s=40,
    max_body_bytes=100_000,
    max_header_bytes=2048,
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
GET_10 = b"GET / HTTP/1.0\r\n\r\n"
POST_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
CHUNKED_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def wire(loop: JumpLoop, handle: Handle, **fakes: object) -> Wire:
    return Wire(loop, handle, CONFIG, **fakes)


def ok(body: bytes = b"ok") -> Response:
    return Response(200, [], body)


def stream(body: Body, status: int = 200) -> Response:
    return Response(status, [("Content-Type", "text/event-stream")], body)


def error_code(received: bytes) -> tuple[int, str]:
    """Returns status and code of the last answer, which must be an error object."""
    head, _, body = received[received.rindex(b"HTTP/1.1") :].partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def gone(it: Wire) -> bool:
    """Checks that nothing of the connection is left."""
    return it.transport.lost and not it.server.connections and it.server.active_requests == 0


def test_a_fast_sender_is_read_a_part_in_each_turn(loop: JumpLoop) -> None:
    seen: list[int] = []

    async def handle(request: Request) -> Response:
        seen.append(len(request.body))
        return ok()

    size = 3 * TURN_BYTES
    it = Wire(loop, handle, Config(max_body_bytes=size))
    data = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    turns = sent = 0
    while sent < len(data):
        read = 0
        while not it.transport.reading_paused and sent < len(data):  # like uvloop, in one iteration of the loop
            it.transport.peer_sends(data[sent : sent + 262_144])
            sent += 262_144
            read += 262_144
        assert read <= TURN_BYTES
        turns += 1
        it.run()
    assert turns >= 3
    assert seen == [size]
    assert not it.transport.reading_paused


# --- answers


def test_a_whole_answer_is_one_write_and_the_connection_stays(loop: JumpLoop) -> None:
    it = wire(loop, answering(ok(), ok(b"again")))
    it.send(GET)
    it.send(GET)
    assert [*map(undated, it.transport.writes)] == [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nagain",
    ]
    assert it.server.active_requests == 0
    it.transport.peer_shuts()
    it.run()
    assert gone(it)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_piece_that_is_ready_goes_with_the_head(loop: JumpLoop) -> None:
    it = wire(loop, answering(stream(Body(b"one", 1.0, b"two"))))
    it.send(GET, 0.5)
    assert [*map(undated, it.transport.writes)] == [STREAM_HEAD + b"3\r\none\r\n"]
    it.run(1)


def test_a_stream_that_is_cancelled_before_its_head_is_a_503(loop: JumpLoop) -> None:
    it = wire(loop, answering(stream(Body(1.0, b"one"))))
    it.transport.peer_sends(GET)
    loop.call_soon(it.connection.cancel)
    it.run()
    assert error_code(it.received) == (503, "shutting_down")
    assert it.received.count(b"HTTP/1.1") == 1
    assert gone(it)


def test_a_stream_without_a_piece_is_a_whole_answer(loop: JumpLoop) -> None:
    it = wire(loop, answering(stream(Body())))
    it.send(GET)
    assert len(it.transport.writes) == 1
    assert it.received.endswith(b"\r\n\r\n0\r\n\r\n")


def test_a_stream_to_http_1_0_is_raw_and_closes(loop: JumpLoop) -> None:
    body = Body(b"one", b"two")
    it = wire(loop, answering(stream(body)))
    it.send(GET_10)
    assert it.received.endswith(b"Connection: close\r\n\r\nonetwo")
    assert gone(it)
    assert not it.transport.aborted
    assert body.closed == 1


@pytest.mark.parametrize(("request_bytes", "status"), [(HEAD, 200), (GET, 204), (GET, 304)])
def test_a_stream_that_nobody_wants_is_closed_unread(loop: JumpLoop, request_bytes: bytes, status: int) -> None:
    body = Body(b"one")
    it = wire(loop, answering(stream(body, status), ok()))
    it.send(request_bytes + GET)
    assert (body.given, body.closed) == (0, 1)
    assert it.received.count(b"HTTP/1.1") == 2
    assert b"one" not in it.received


def test_pipelined_requests_are_answered_in_order_one_at_a_time(loop: JumpLoop) -> None:
    running: list[int] = []

    async def handle(request: Request) -> Response:
        running.append(it.server.active_requests)
        await asyncio.sleep(3 - int(request.path[1:]))
        return ok(request.path.encode())

    it = wire(loop, handle)
    it.send(b"".join(GET.replace(b"/ ", b"/%d " % i) for i in range(3)), 10)
    assert [write[-2:] for write in it.transport.writes] == [b"/0", b"/1", b"/2"]
    assert running == [1, 1, 1]


# --- departures


def test_pipelined_requests_of_a_peer_that_left_are_not_begun(loop: JumpLoop) -> None:
    asked: list[str] = []

    async def handle(request: Request) -> Response:
        asked.append(request.path)
        await asyncio.sleep(1)
        return ok()

    it = wire(loop, handle)
    it.send(GET + GET)
    it.transport.peer_shuts()
    it.run(5)
    assert len(asked) == 1
    assert gone(it)


def test_cleaning_up_after_a_departure_is_not_interrupted_by_the_loss(loop: JumpLoop) -> None:
    cleaned: list[bool] = []

    async def handle(request: Request) -> Response:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(5)
            cleaned.append(True)
        return ok()

    it = wire(loop, handle)
    it.send(GET, 1)
    it.transport.peer_shuts()
    it.run(1)
    assert it.transport.lost
    it.run(10)
    assert cleaned == [True]
    assert gone(it)


def test_a_handler_that_ignores_its_cancellation_does_not_reach_the_wire(loop: JumpLoop) -> None:
    body = Body(b"late")

    async def handle(request: Request) -> Response:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        return stream(body)

    it = wire(loop, handle)
    it.send(GET, 1)
    it.transport.peer_resets()
    it.run()
    assert it.transport.writes == []
    assert (body.given, body.closed) == (0, 1)
    assert gone(it)


def test_a_stream_that_ignores_its_cancellation_is_closed_and_not_sent_on(loop: JumpLoop) -> None:
    class Stubborn(Body):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in (b"one", b"two", b"three"):
                self.given += 1
                yield piece
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)

    body = Stubborn()
    it = wire(loop, answering(stream(body)))
    it.send(GET, 1)
    it.transport.peer_shuts()
    it.run()
    assert (body.given, body.closed) == (2, 1)
    assert len(it.transport.writes) == 1
    assert gone(it)


# --- failures


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (KeyError("/secret/path"), 500, "internal_error"),
        (TooManyRequests("full"), 429, "queue_full"),
        (asyncio.CancelledError(), 500, "internal_error"),
        (stream(Body(asyncio.CancelledError())), 500, "internal_error"),
        (stream(Body(ValueError("secret"))), 500, "internal_error"),
        (Response(200, [("X", "a\r\nb")], b""), 500, "internal_error"),
        (Response(99), 500, "internal_error"),
        (Response(200, [], "text"), 500, "internal_error"),  # type: ignore[arg-type]
        (None, 500, "internal_error"),
    ],
)
def test_a_failure_before_the_head_is_an_error_object_and_the_connection_stays(
    loop: JumpLoop, caplog: pytest.LogCaptureFixture, outcome: Response | BaseException, status: int, code: str
) -> None:
    it = wire(loop, answering(outcome, ok()))
    it.send(GET)
    assert error_code(it.received) == (status, code)
    assert b"secret" not in it.received
    assert bool(caplog.records) == (status == 500)
    it.send(GET)
    assert it.received.endswith(b"ok")


@pytest.mark.parametrize("failure", [ValueError("secret"), asyncio.CancelledError()])
def test_a_stream_that_fails_later_ends_without_its_last_chunk(
    loop: JumpLoop, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    body = Body(b"one", failure)
    it = wire(loop, answering(stream(body)))
    it.send(GET + GET)
    assert it.received.endswith(b"3\r\none\r\n")
    assert body.closed == 1
    assert gone(it)
    assert not it.transport.aborted
    assert "the response" in caplog.text


def test_a_stream_that_fails_to_http_1_0_resets_since_its_end_would_look_whole(loop: JumpLoop) -> None:
    it = wire(loop, answering(stream(Body(b"one", ValueError()))))
    it.send(GET_10)
    assert it.transport.aborted
    assert gone(it)


def test_a_failing_aclose_is_logged_and_harms_nobody(loop: JumpLoop, caplog: pytest.LogCaptureFixture) -> None:
    class Bad(Body):
        async def aclose(self) -> None:
            raise ValueError("bad")

    it = wire(loop, answering(stream(Bad(b"one")), ok()))
    it.send(GET + GET)
    assert it.received.endswith(b"ok")
    assert "closing a response failed" in caplog.text


# --- timers


def test_an_idle_connection_is_closed_in_silence(loop: JumpLoop) -> None:
    it = wire(loop, answering(ok()))
    it.run(9)
    it.send(GET)
    it.send(b"\r\n", 20)  # an empty line is not a request and does not extend the deadline
    it.send(b"\r\n", 9.9)
    assert not it.transport.lost
    it.run(0.2)
    assert gone(it)
    assert it.received.count(b"HTTP") == 1


def test_headers_one_byte_at_a_time_are_408_in_the_end(loop: JumpLoop) -> None:
    it = wire(loop, answering(ok()))
    it.send(GET, 5)
    for byte in GET[:-1]:
        it.send(bytes([byte]), 0.5)
        if it.transport.eof_written:
            break
    assert error_code(it.received) == (408, "request_timeout")
    assert b"the request headers did not arrive in time" in it.received
    assert 15 <= loop.time() < 16
    it.run(LINGER_S)
    assert gone(it)


def test_a_body_one_byte_at_a_time_is_408_in_the_end(loop: JumpLoop) -> None:
    it = wire(loop, answering())
    it.send(POST_HEAD, 9)
    for _ in range(3):
        it.send(b"a", 3)
        assert it.received == b""
    it.send(b"a", 3)
    assert error_code(it.received) == (408, "request_timeout")
    assert b"the request body did not arrive in time" in it.received
    it.run(LINGER_S)
    assert gone(it)


def test_each_part_of_a_request_has_its_own_time(loop: JumpLoop) -> None:
    it = wire(loop, answering(ok(), ok()))
    it.run(9)
    for _ in range(2):
        it.send(POST_HEAD[:20], 9)
        it.send(POST_HEAD[20:], 19)
        it.send(b"hello", 29)
    assert it.received.count(b"200 OK") == 2


def test_a_handler_has_all_the_time_it_needs(loop: JumpLoop) -> None:
    it = wire(loop, answering(ok(), after_s=10_000))
    it.send(GET, 10_001)
    assert it.received.endswith(b"ok")


def test_a_silent_stream_is_not_a_stalled_one(loop: JumpLoop) -> None:
    it = wire(loop, answering(stream(Body(b"one", 10_000, b"two"))))
    it.transport.room = 10  # the rest stays in the transport, below its limit
    it.send(GET, 10_001)
    it.transport.take(None)
    assert it.received.endswith(b"two\r\n0\r\n\r\n")


# --- flow control


def test_a_client_that_takes_nothing_is_cut_and_its_stream_cancelled(loop: JumpLoop) -> None:
    body = Body(*[b"x" * 10_000] * 100)
    it = wire(loop, answering(stream(body)))
    it.transport.room = 0
    it.send(GET, 39)
    assert body.given == 7  # what fits into the transport, then one piece waits
    assert not it.transport.lost
    it.run(1.1)
    assert it.transport.aborted
    assert body.closed == 1
    assert gone(it)


def test_a_client_that_takes_a_little_and_then_nothing_is_cut(loop: JumpLoop) -> None:
    it = wire(loop, answering(stream(Body(*[b"x" * 10_000] * 20))))
    it.transport.room = 0
    it.send(GET, 30)
    it.transport.take(1_000)
    it.run(30)
    assert not it.transport.lost
    it.run(60)
    assert it.transport.aborted


def test_a_client_that_takes_a_little_is_not_cut(loop: JumpLoop) -> None:
    body = Body(*[b"x" * 10_000] * 20)
    it = wire(loop, answering(stream(body)))
    it.transport.room = 0
    it.send(GET)
    for _ in range(10):
        it.run(30)
        it.transport.take(1_000)
    assert not it.transport.lost
    it.transport.take(None)
    it.run()
    assert body.given == 20
    assert it.received.endswith(b"0\r\n\r\n")
    assert body.closed == 1


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(ok(b"x" * 1_000_000), 41), (ok(), 30 + 40 + 1)],
    ids=["large", "small, when idle"],
)
def test_a_whole_answer_that_nobody_takes_is_cut(loop: JumpLoop, answer: Response, seconds: float) -> None:
    it = wire(loop, answering(answer))
    it.transport.room = 0
    it.send(GET, seconds)
    assert it.transport.aborted
    assert gone(it)


def test_pipelining_without_taking_answers_does_not_fill_memory(loop: JumpLoop) -> None:
    asked: list[int] = []

    async def handle(request: Request) -> Response:
        asked.append(1)
        return ok(b"x" * 50_000)

    it = wire(loop, handle)
    it.transport.room = 0
    it.send(GET * 50)
    assert len(asked) == 2
    it.run(41)
    assert gone(it)


def test_reading_pauses_when_too_much_comes_ahead(loop: JumpLoop) -> None:
    it = wire(loop, answering(*[ok()] * 3000, after_s=1))
    it.send(GET)
    it.send(b"x" * MAX_AHEAD_BYTES)
    assert not it.transport.reading_paused
    it.send(b"x")
    assert it.transport.reading_paused
    it.run(2)
    assert error_code(it.received) == (431, "headers_too_large")
    it.run(LINGER_S)
    assert gone(it)


def test_reading_goes_on_when_what_came_ahead_is_used(loop: JumpLoop) -> None:
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n" + b"x" * 30_000
    it = wire(loop, answering(*[ok()] * 4, after_s=1))
    it.send(GET)
    it.send(post * 2 + post[:10_000])
    assert it.transport.reading_paused
    it.run(1.5)
    assert not it.transport.reading_paused
    it.send(post[10_000:], 10)
    assert it.received.count(b"200 OK") == 4


@pytest.mark.parametrize("room", [None, 0])
@pytest.mark.slow
def test_a_flood_of_pipelined_requests_is_not_read_ahead(loop: JumpLoop, room: int | None) -> None:
    """Each answered request once let the transport read 256 KiB more, whether the answers were read or not."""
    read = GET * (262_144 // len(GET))
    served = 0

    async def handle(request: Request) -> Response:
        nonlocal served
        served += 1
        return ok()

    it = wire(loop, handle)
    it.transport.room = room
    most = 0
    for _ in range(2000):
        if not it.transport.reading_paused:
            it.transport.peer_sends(read)
        loop.run_until_complete(asyncio.sleep(0))
        most = max(most, it.connection._protocol.pipelined_bytes)
    assert served > 500
    assert most <= MAX_AHEAD_BYTES + len(read)
    it.connection.abort()
    it.run()


def test_others_are_served_during_a_flood_of_pipelined_requests(loop: JumpLoop) -> None:
    order: list[str] = []

    async def handle(request: Request) -> Response:
        order.append(request.path)
        return ok()

    flood, other = wire(loop, handle), wire(loop, handle)
    flood.transport.peer_sends(GET * 5000)
    loop.run_until_complete(asyncio.sleep(0))
    for _ in range(50):
        other.transport.peer_sends(GET.replace(b"/ ", b"/other "))
        for _ in range(4):
            loop.run_until_complete(asyncio.sleep(0))
    assert order.count("/other") == 50
    assert order.count("/") < 50 * 10  # one request per iteration, not all that have arrived
    for it in (flood, other):
        it.connection.abort()
        it.run()


def test_a_body_of_tiny_chunks_is_read_in_turns(loop: JumpLoop) -> None:
    bodies: list[bytes] = []

    async def handle(request: Request) -> Response:
        bodies.append(request.body)
        return ok()

    it = wire(loop, handle)
    it.transport.peer_sends(CHUNKED_HEAD + b"1\r\na\r\n" * 600)
    assert it.transport.reading_paused
    it.run()
    it.send(b"0\r\n\r\n")
    assert bodies == [b"a" * 600]
    assert not it.transport.reading_paused


def large_head(size: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size


def test_bodies_still_coming_in_are_accounted_for_until_they_are_whole(loop: JumpLoop) -> None:
    it = Wire(loop, answering(ok()), Config())
    it.send(large_head(2_000_000))
    for size in (300_000, 600_000):
        it.send(b"x" * 300_000)
        assert it.server.reserved_bytes == size
    it.send(b"x" * 1_400_000)
    assert it.received.endswith(b"ok")
    assert it.server.reserved_bytes == 0
    it.send(large_head(2_000_000) + b"x" * 1_000_000)
    assert it.server.reserved_bytes == 1_000_000
    it.transport.peer_resets()
    it.run()
    assert it.server.reserved_bytes == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (large_head(2_000_000) + bytes(400_000), bytes(200_000)),
        (CHUNKED_HEAD + b"61A80\r\n" + bytes(400_000), b"\r\n61A80\r\n" + bytes(200_000)),
    ],
)
def test_a_large_body_too_many_is_503_and_its_memory_is_free_at_once(
    loop: JumpLoop, first: bytes, second: bytes
) -> None:
    it = Wire(loop, answering(ok()), Config(), most_reserved_bytes=599_999)
    it.send(first)
    assert (it.server.reserved_bytes, it.received) == (400_000, b"")
    it.send(second)
    assert error_code(it.received) == (503, "too_many_large_requests")
    assert it.server.reserved_bytes == 0
    it.run(LINGER_S)
    assert gone(it)


def test_the_bodies_of_one_client_leave_room_for_those_of_others(loop: JumpLoop) -> None:
    it = Wire(loop, answering(ok()), Config(), most_reserved_bytes=1_000_000)
    assert it.connection.client
    it.send(large_head(2_000_000) + bytes(750_000))
    assert it.received == b""
    assert it.server.reserve_memory(250_000, "another")
    it.server.reserve_memory(-250_000, "another")
    it.send(b"x")
    assert error_code(it.received) == (503, "too_many_large_requests")
    assert it.server.reserve_memory(1_000_000)


def test_a_small_body_is_welcome_when_memory_is_short(loop: JumpLoop) -> None:
    it = Wire(loop, answering(ok()), Config(), most_reserved_bytes=-1)
    it.send(large_head(200_000) + b"x" * 199_999)
    it.send(b"x")
    assert it.received.endswith(b"ok")


def test_a_head_that_is_refused_is_answered_before_its_body_is_sent(loop: JumpLoop) -> None:
    checked: list[tuple[str, str, str]] = []

    def check(request: Request) -> None:
        checked.append((request.method, request.path, request.headers["host"]))
        raise Forbidden("not from here")

    it = wire(loop, answering(ok()), check_head=check)
    it.send(b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert error_code(it.received) == (403, "forbidden")
    assert checked == [("POST", "/a", "x")]
    assert it.transport.ended
    chunked = wire(loop, answering(ok()), check_head=check)
    chunked.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert error_code(chunked.received) == (403, "forbidden")


def test_a_head_without_a_body_is_the_handlers_alone(loop: JumpLoop) -> None:
    def check(request: Request) -> None:
        raise Forbidden("not from here")

    it = wire(loop, answering(ok()), check_head=check)
    it.send(GET)
    assert it.received.startswith(b"HTTP/1.1 200")


# --- closing


def test_after_a_refusal_what_still_comes_is_dropped_until_the_peer_leaves(loop: JumpLoop) -> None:
    it = wire(loop, answering())
    it.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n")
    assert error_code(it.received) == (413, "payload_too_large")
    assert it.transport.ended
    assert not it.transport.lost
    it.send(b"x" * 50_000)
    it.send(b"x" * 50_000)
    assert not it.transport.lost
    it.transport.peer_shuts()
    it.run()
    assert gone(it)
    assert not it.transport.aborted


def test_lingering_is_bounded_in_time_and_bytes(loop: JumpLoop) -> None:
    for amount, seconds in ((0, LINGER_S + 0.1), (200_001, 0)):
        it = wire(loop, answering())
        it.send(b"nonsense\r\n\r\n")
        assert error_code(it.received) == (400, None)
        if amount:
            it.send(b"x" * amount)
        it.run(seconds)
        assert gone(it)


def test_a_response_can_close_and_what_was_pipelined_is_dropped(loop: JumpLoop) -> None:
    it = wire(loop, answering(Response(200, [], b"bye", close=True)))
    it.send(GET + GET)
    assert undated(it.received) == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbye"
    assert it.transport.ended
    it.run(LINGER_S)
    assert gone(it)


def test_a_connection_refused_at_the_start_gets_a_503(loop: JumpLoop) -> None:
    it = wire(loop, answering(), on_open=lambda connection: connection.refuse(Unavailable("full", code="full")))
    assert error_code(it.received) == (503, "full")
    assert b"Retry-After: 2\r\n" in it.received
    it.send(GET)
    it.transport.peer_shuts()
    it.run()
    assert gone(it)


# --- drain


def test_drain_lets_an_exchange_finish_and_says_close(loop: JumpLoop) -> None:
    it = wire(loop, answering(ok(), after_s=5))
    it.send(GET + GET, 1)
    it.server.draining = True
    it.connection.drain()
    it.run(5)
    assert undated(it.received) == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    it.transport.peer_shuts()
    it.run()
    assert gone(it)


def test_drain_lets_a_request_arrive(loop: JumpLoop) -> None:
    it = wire(loop, answering(ok()))
    it.send(POST_HEAD)
    it.server.draining = True
    it.connection.drain()
    it.send(b"hello")
    assert it.received.endswith(b"Connection: close\r\n\r\nok")
    it.transport.peer_shuts()
    it.run()
    assert gone(it)


def test_giving_up_during_the_release_of_a_whole_answer_keeps_it(loop: JumpLoop) -> None:
    class Slow(Body):
        async def aclose(self) -> None:
            await asyncio.sleep(5)
            await super().aclose()

    body = Slow(b"one")
    it = wire(loop, answering(stream(body)))
    it.send(GET, 1)
    it.connection.cancel()
    it.run(5)
    assert it.received.endswith(b"0\r\n\r\n")
    assert body.closed == 1
    assert gone(it)


def test_nothing_is_logged_for_ordinary_departures(loop: JumpLoop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for leave in ("peer_shuts", "peer_resets"):
        it = wire(loop, answering(stream(Body(b"one", 1000))))
        it.send(GET, 1)
        getattr(it.transport, leave)()
        it.run()
        assert gone(it)
    assert caplog.records == []
