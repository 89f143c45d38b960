"""WebSockets on a fake transport in virtual time: handshake, flow control, keep-alive, hostile and vanished clients."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import orjson
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import install_command
from lean_ovms.features.websocket.channel import MAX_QUEUED_BYTES, MAX_QUEUED_MESSAGES
from lean_ovms.features.websocket.connection import AHEAD_BYTES, CLOSE_S, MAX_FRAMES_PER_TURN, PING_S, SLICE
from lean_ovms.features.websocket.types import TRY_AGAIN_LATER
from lean_ovms.transports.http11.connection import LINGER_S
from tests.features.websocket.fakes import Echo
from tests.fuzz.targets import masked
from tests.transports.http11.fakes import JumpLoop, Wire, jump_loop

CONFIG = Config(stream_stall_timeout_s=40, max_body_bytes=100_000)
HEAD = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
BYE = masked(CLOSE, b"\x03\xe8")


@pytest.fixture
def loop() -> Iterator[JumpLoop]:
    import lean_ovms.features.websocket.connection  # noqa: F401 - else a thread imports it, in real time

    with jump_loop() as loop:
        yield loop


@pytest.fixture
def echo() -> Echo:
    return Echo()


def opened(loop: JumpLoop, echo: Echo, rest: bytes = b"") -> Wire:
    wire = Wire(loop, echo.handle, CONFIG)
    wire.send(HEAD + rest)
    assert wire.received.startswith(SWITCHED)
    return wire


def frames_of(wire: Wire) -> bytes:
    return wire.received.removeprefix(SWITCHED)


def gone(wire: Wire, echo: Echo) -> bool:
    """Checks that nothing of the connection is left, and that the response was closed once."""
    return wire.transport.lost and not wire.server.connections and not wire.server.active_requests and echo.closed == 1


# --- opening


def test_bytes_behind_the_head_are_the_first_messages(
    loop: JumpLoop, caplog: pytest.LogCaptureFixture, echo: Echo
) -> None:
    caplog.set_level(logging.DEBUG)
    wire = opened(loop, echo, masked(TEXT, b"one") + masked(TEXT, b"two")[:5])
    wire.send(masked(TEXT, b"two")[5:] + masked(PING, b"p"))
    assert frames_of(wire) == b"\x81\x03one\x8a\x01p\x81\x03two"
    wire.send(BYE)
    assert frames_of(wire).endswith(b"\x88\x02\x03\xe8")
    assert wire.transport.eof_written
    wire.transport.peer_shuts()
    wire.run()
    assert gone(wire, echo)
    assert echo.cancelled == 1
    assert "one" not in caplog.text  # nothing of messages is logged


@pytest.mark.parametrize("cut", [1, len(HEAD) - 1, len(HEAD), len(HEAD) + 3])
def test_any_cut_of_the_first_bytes(loop: JumpLoop, cut: int, echo: Echo) -> None:
    wire = Wire(loop, echo.handle, CONFIG)
    data = HEAD + masked(TEXT, b"bye")
    wire.send(data[:cut])
    wire.send(data[cut:])
    assert frames_of(wire) == b"\x88\x0d\x0f\xa0as you wish"
    wire.send(BYE)
    wire.transport.peer_resets()
    wire.run()
    assert gone(wire, echo)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"13\r\n", b"8\r\n"),
        HEAD.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        HEAD.replace(b"Connection: Upgrade", b"Connection: keep-alive"),
        HEAD.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"AAAA"),
        HEAD.replace(b"GET", b"POST"),
    ],
)
def test_a_request_without_a_proper_handshake_is_plain_http(loop: JumpLoop, head: bytes, echo: Echo) -> None:
    wire = Wire(loop, echo.handle, CONFIG)
    wire.send(head)
    assert wire.received.startswith(b"HTTP/1.1 426 ")
    assert b"\r\nUpgrade: websocket\r\n" in wire.received
    assert b"\r\nConnection: Upgrade\r\n" in wire.received
    assert not echo.served
    wire.connection.drain()
    wire.run()


def test_without_the_extra_the_error_names_it(loop: JumpLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    from lean_ovms.transports.http11 import connection

    async def in_loop(function: object, module: str) -> None:
        raise ImportError

    monkeypatch.delitem(sys.modules, "lean_ovms.features.websocket.connection")
    monkeypatch.setattr(connection.asyncio, "to_thread", in_loop)
    echo = Echo()
    wire = Wire(loop, echo.handle, CONFIG)
    wire.send(HEAD)
    assert wire.received.startswith(b"HTTP/1.1 501 ")
    error = orjson.loads(wire.received.partition(b"\r\n\r\n")[2])["error"]
    assert error["message"].endswith(install_command("realtime"))
    assert echo.closed == 1
    wire.connection.drain()
    wire.run()


# --- closing


def test_the_servers_close_waits_for_the_clients(loop: JumpLoop, echo: Echo) -> None:
    wire = opened(loop, echo)
    wire.send(masked(TEXT, b"bye") + masked(TEXT, b"late"))
    assert frames_of(wire) == b"\x88\x0d\x0f\xa0as you wish"
    assert not wire.transport.eof_written
    silent = Echo()
    other = opened(loop, silent, masked(TEXT, b"bye"))
    other.run(CLOSE_S + LINGER_S + 1)
    assert gone(other, silent)  # its client never answers
    wire.send(masked(TEXT, b"later") + BYE)
    assert echo.received == [b"bye"]
    assert wire.transport.eof_written
    wire.run(LINGER_S + 1)
    assert gone(wire, echo)


def test_a_handler_that_fails(loop: JumpLoop, caplog: pytest.LogCaptureFixture, echo: Echo) -> None:
    wire = opened(loop, echo, masked(TEXT, b"boom"))
    assert frames_of(wire) == b"\x88\x10\x03\xf3internal error"
    assert "ZeroDivisionError" in caplog.text
    wire.send(BYE, LINGER_S + 1)
    assert gone(wire, echo)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (masked(TEXT, b"\xff"), 1007),
        (b"\x81\x05hello", 1002),
        (masked(0, b"x"), 1002),
        (b"\x82\xff" + (2**62).to_bytes(8, "big"), 1009),
    ],
)
def test_a_client_that_breaks_the_protocol(loop: JumpLoop, data: bytes, code: int, echo: Echo) -> None:
    wire = opened(loop, echo, data)
    assert frames_of(wire)[0:1] == b"\x88"
    assert int.from_bytes(frames_of(wire)[2:4], "big") == code
    wire.send(b"x" * 1000)
    wire.run(LINGER_S + 1)
    assert gone(wire, echo)
    assert echo.cancelled == 1


@pytest.mark.parametrize("how", ["peer_shuts", "peer_resets"])
def test_a_client_that_is_gone_cancels_the_handler(loop: JumpLoop, how: str, echo: Echo) -> None:
    wire = opened(loop, echo, masked(TEXT, b"one"))
    getattr(wire.transport, how)()
    wire.run()
    assert gone(wire, echo)
    assert echo.cancelled == 1


def test_shutdown_closes_with_going_away(loop: JumpLoop, echo: Echo) -> None:
    wire = opened(loop, echo)
    wire.connection.drain()
    wire.send(masked(TEXT, b"one"))
    assert frames_of(wire) == b"\x81\x03one"
    wire.connection.cancel()
    wire.run()
    assert frames_of(wire).endswith(b"\x03\xe9the server is shutting down")
    assert gone(wire, echo)


# --- keep-alive


def test_a_vanished_client_is_given_up_after_two_pings(loop: JumpLoop, echo: Echo) -> None:
    wire = opened(loop, echo)
    for _ in range(10):
        wire.run(PING_S)
        wire.send(masked(PONG, b""))
    assert not wire.transport.closing
    before = len(frames_of(wire))
    wire.run(2 * PING_S)
    assert frames_of(wire)[before:] == b"\x89\x00\x89\x00"
    wire.run(PING_S)
    assert b"no answer to pings" in frames_of(wire)
    wire.run(LINGER_S + 1)
    assert gone(wire, echo)


# --- back-pressure


def test_a_handler_that_receives_nothing_stops_the_reading(loop: JumpLoop, echo: Echo) -> None:
    echo.gate.clear()
    wire = opened(loop, echo)
    block = masked(TEXT, bytes(60_000))
    sent = 0
    while not wire.transport.reading_paused:
        wire.send(block)
        sent += 1
    assert MAX_QUEUED_BYTES <= sent * 60_000 <= MAX_QUEUED_BYTES + 200_000
    wire.run(10 * PING_S)  # while reading is paused, missing pongs do not count
    assert not wire.transport.closing
    echo.gate.set()
    wire.run()
    wire.run()
    assert not wire.transport.reading_paused
    wire.run()
    assert len(echo.received) == sent
    wire.transport.peer_resets()
    wire.run()


def test_many_small_messages_stop_the_reading_too(loop: JumpLoop, echo: Echo) -> None:
    echo.gate.clear()
    wire = opened(loop, echo)
    wire.send(masked(TEXT, b"") * 6_000)
    assert wire.transport.reading_paused
    websocket = wire.connection._switched
    assert websocket is not None
    assert len(websocket._messages) <= MAX_QUEUED_MESSAGES + 16384 // 6 + 1
    echo.gate.set()
    for _ in range(2000):
        wire.run()
        if len(echo.received) == 6_000:
            break
    assert len(echo.received) == 6_000
    wire.transport.peer_resets()
    wire.run()


def test_a_flood_of_frames_lets_others_have_their_turn(loop: JumpLoop, echo: Echo) -> None:
    """Fragments without content complete no message, so the queue does not stop them."""
    wire = opened(loop, echo)
    wire.transport.peer_sends(masked(TEXT, b"", fin=False) + masked(0, b"", fin=False) * 10_000 + masked(0, b"end"))
    websocket = wire.connection._switched
    assert websocket is not None
    assert len(websocket._backlog) > 10_000 * 6 - 2 * 16384 - 6 * MAX_FRAMES_PER_TURN
    assert wire.transport.reading_paused
    for _ in range(10):
        wire.run()
    assert echo.received == [b"end"]
    wire.transport.peer_resets()
    wire.run()


def test_a_client_that_does_not_read_its_pongs_is_not_read(loop: JumpLoop, echo: Echo) -> None:
    wire = opened(loop, echo)
    wire.transport.take(0)
    sent = 0
    while not wire.transport.reading_paused:
        wire.send(masked(PING, bytes(125)) * 100)
        sent += 100
    assert len(wire.transport.buffer) < 3 * wire.transport.high
    wire.run(45)
    assert gone(wire, echo)  # after --stream_stall_timeout_s


def test_a_client_that_does_not_read_stops_the_handler(loop: JumpLoop, echo: Echo) -> None:
    echo.reply = bytes(50_000)
    wire = opened(loop, echo)
    wire.transport.take(0)
    wire.send(masked(TEXT, b"x") * 50)
    assert len(echo.received) <= 3
    wire.transport.take(None)
    wire.run()
    wire.run()
    assert len(echo.received) == 50
    wire.transport.peer_resets()
    wire.run()


# --- large messages


def large(size: int) -> bytes:
    """Returns a text message with this many bytes, whose mask changes nothing."""
    return b"\x81\xff" + size.to_bytes(8, "big") + bytes(4) + b"a" * size


def test_an_unfinished_message_counts_as_a_body_and_is_freed_with_its_connection(loop: JumpLoop, echo: Echo) -> None:
    wire = opened(loop, echo)
    data = large(900_000)
    wire.send(data[:500_000])
    assert wire.server.reserved_bytes >= 480_000
    websocket = wire.connection._switched
    assert websocket is not None
    wire.transport.peer_resets()
    wire.run()
    assert gone(wire, echo)
    assert wire.server.reserved_bytes == websocket._frames.unfinished_bytes == len(websocket._backlog) == 0


def test_too_many_unfinished_messages_are_refused(loop: JumpLoop, echo: Echo) -> None:
    wire = opened(loop, echo)
    wire.server.most_reserved_bytes = 300_000
    wire.send(large(900_000)[:500_000])
    assert b"too many large messages" in frames_of(wire)
    assert int.from_bytes(frames_of(wire)[2:4], "big") == TRY_AGAIN_LATER
    assert wire.server.reserved_bytes == 0
    wire.run(LINGER_S + 1)
    assert gone(wire, echo)


def test_a_large_message_must_arrive_in_time(loop: JumpLoop, echo: Echo) -> None:
    wire = opened(loop, echo)
    wire.send(large(900_000)[:500_000])
    for _ in range(int(CONFIG.body_timeout_s / PING_S)):
        wire.run(PING_S - 1)
        assert not wire.transport.closing
        wire.send(b"a")
    wire.run(PING_S)
    assert b"did not arrive in time" in frames_of(wire)
    wire.run(LINGER_S + 1)
    assert gone(wire, echo)
    assert wire.server.reserved_bytes == 0


def test_a_large_message_is_not_read_ahead(loop: JumpLoop, echo: Echo) -> None:
    """While the handler works on another message, only the beginning is read, however long it works."""
    wire = opened(loop, echo)
    wire.send(masked(TEXT, b"one"))
    echo.gate.clear()
    wire.send(masked(TEXT, b"two"))
    data, at = large(900_000), 0
    while not wire.transport.reading_paused:
        wire.send(data[at : at + 20_000])
        at += 20_000
    assert AHEAD_BYTES < at < AHEAD_BYTES + 4 * SLICE + 2 * 20_000
    assert wire.server.reserved_bytes == 0
    wire.run(10 * CONFIG.body_timeout_s)  # the time limit has not started
    assert not wire.transport.closing
    echo.gate.set()
    wire.run()
    assert not wire.transport.reading_paused
    wire.send(data[at:])
    assert ([len(message) for message in echo.received], wire.server.reserved_bytes) == ([3, 3, 900_000], 0)
    wire.transport.peer_resets()
    wire.run()
