"""RFC 6455's frames without sockets: any cut of the bytes gives the same messages, and the same close."""

from __future__ import annotations

import gc
import itertools
import weakref
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame

from lean_ovms.features.websocket import frames
from lean_ovms.features.websocket.frames import PIECE_BYTES, Frames
from lean_ovms.features.websocket.types import TOO_BIG, Close, WebSocketMessage
from tests.fuzz.targets import masked, websocket, websocket_read

TEXT, BINARY, CONT, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
LIMIT = 1024
"""The most bytes of a message, as in the fuzz target."""


def closed_with(sent: bytes) -> int:
    """Returns the code of the close frame at the end of what was sent."""
    at = sent.rindex(b"\x88")
    return int.from_bytes(sent[at + 2 : at + 4], "big")


def test_messages_and_pings() -> None:
    data = (
        masked(TEXT, "ä".encode())
        + masked(PING, b"p")
        + masked(BINARY, b"\0\1")
        + masked(PONG, b"")
        + masked(TEXT, b"")
    )
    assert websocket_read([data]) == (
        [WebSocketMessage("ä".encode()), WebSocketMessage(b"\0\1", is_text=False), WebSocketMessage(b"")],
        b"\x8a\x01p",
        False,
    )


def test_fragments_are_joined_with_pings_between() -> None:
    letters = "wäre".encode()
    data = (
        masked(TEXT, letters[:2], fin=False)
        + masked(PING, b"")
        + masked(CONT, b"", fin=False)
        + masked(CONT, letters[2:])
    )
    assert websocket_read([data]) == ([WebSocketMessage("wäre".encode())], b"\x8a\x00", False)


def test_a_large_text_is_sent_in_fragments() -> None:
    sender = Frames(LIMIT)
    for number, piece in enumerate(("wär".encode()[:2], "wär".encode()[2:], b"e")):
        sender.text(piece, first=number == 0, last=number == 2)
        if number == 1:
            sender.ping()
    assert sender.take_outgoing() == b"\x01\x02w\xc3\x00\x02\xa4r\x89\x00\x80\x01e"


def test_the_close_is_answered_with_the_same_code() -> None:
    messages, sent, ended = websocket_read([masked(TEXT, b"a") + masked(CLOSE, b"\x0f\xa0why") + masked(TEXT, b"b")])
    assert (messages, sent, ended) == ([WebSocketMessage(b"a")], b"\x88\x05\x0f\xa0why", True)
    assert websocket_read([masked(CLOSE, b"")]) == ([], b"\x88\x00", True)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x05hello", 1002),  # not masked
        (masked(TEXT | 0x40, b"a"), 1002),  # RSV: no extension was agreed
        (masked(3, b"a"), 1002),
        (masked(11, b"a"), 1002),
        (masked(CONT, b"a"), 1002),
        (masked(TEXT, b"a", fin=False) + masked(TEXT, b"b"), 1002),
        (masked(PING, bytes(126)), 1002),
        (masked(PING, b"a", fin=False), 1002),
        (masked(CLOSE, b"\x01"), 1002),
        (masked(CLOSE, b"\x03\xec"), 1002),  # 1004 is reserved
        (masked(TEXT, b"\xff"), 1007),
        (masked(TEXT, b"\xc3", fin=False) + masked(CONT, b"("), 1007),
        (masked(TEXT, "\ud800".encode("utf-8", "surrogatepass")), 1007),
        (masked(CLOSE, b"\x03\xe8\xff"), 1007),
        (masked(BINARY, bytes(LIMIT + 1)), 1009),
        (masked(BINARY, bytes(LIMIT), fin=False) + masked(CONT, b"a"), 1009),
        (b"\x82\xff" + (2**62).to_bytes(8, "big"), 1009),  # rejected before any content has arrived
        (b"\x82\xff" + (2**63).to_bytes(8, "big"), 1009),
    ],
)
def test_what_breaks_the_protocol_ends_it(data: bytes, code: int) -> None:
    messages, sent, ended = websocket_read([masked(TEXT, b"before") + data + masked(TEXT, b"after")])
    assert messages[:1] == [WebSocketMessage(b"before")]
    assert WebSocketMessage(b"after") not in messages
    assert ended
    assert closed_with(sent) == code


def test_what_is_sent() -> None:
    reader = Frames(LIMIT)
    reader.text(b"hello")
    reader.text(bytes(200))
    reader.ping()
    assert reader.take_outgoing() == b"\x81\x05hello" + b"\x81\x7e\x00\xc8" + bytes(200) + b"\x89\x00"
    assert reader.take_outgoing() == b""
    reader.close(Close(1001, "ä" * 100))
    sent = reader.take_outgoing()
    assert sent[1] <= 125
    sent[4:].decode()
    reader.text(b"late")
    reader.ping()
    reader.close(Close())
    assert reader.take_outgoing() == b""
    assert not reader.ended
    assert reader.feed(masked(TEXT, b"x") + masked(CLOSE, b"\x03\xe9")) == ([WebSocketMessage(b"x")], 2)
    assert reader.ended


FRAMES = st.builds(
    masked,
    st.sampled_from([TEXT, TEXT, BINARY, CONT, CONT, PING, PONG, CLOSE, 3]),
    st.sampled_from([b"", b"hi", "ä€".encode(), b"\xc3", b"\x03\xe8", bytes(130), bytes(600)]),
    fin=st.sampled_from([True, True, False]),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(FRAMES, FRAMES, st.binary(max_size=20)), max_size=6).map(b"".join),
    st.lists(st.integers(0, 4000), max_size=6),
)
@pytest.mark.slow
def test_any_bytes_in_any_cut(data: bytes, cuts: list[int]) -> None:
    websocket(b"\x80" + data)
    places = sorted({place % (len(data) + 1) for place in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert websocket_read(pieces) == websocket_read([data])


def large(opcode: int, data: bytes, *, fin: bool = True) -> bytes:
    """Returns a frame whose mask changes nothing, which is fast for megabytes."""
    return bytes([0x80 * fin | opcode, 0xFF]) + len(data).to_bytes(8, "big") + bytes(4) + data


def closes_with(sent: bytes) -> bytes:
    """Returns the pongs and the code of the close, but not its reason, which contains a position in the piece."""
    pongs, close, rest = sent.partition(b"\x88")
    return pongs + close + rest[1:3]


@settings(max_examples=100, deadline=None)
@given(st.lists(FRAMES, max_size=6).map(b"".join), st.sampled_from([4, 8, 100]))
@pytest.mark.slow
def test_frames_in_pieces_are_the_same_messages(data: bytes, piece: int) -> None:
    whole = websocket_read([data])
    with mock.patch.object(frames, "PIECE_BYTES", piece):
        messages, sent, ended = websocket_read([data])
        assert websocket_read([data[at : at + 3] for at in range(0, len(data), 3)]) == (messages, sent, ended)
    assert (messages, ended) == (whole[0], whole[2])
    if closes_with(whole[1])[-2:] != TOO_BIG.to_bytes(2, "big"):  # if there are two faults, either may be found first
        assert closes_with(sent) == closes_with(whole[1])


def test_the_parser_gets_large_frames_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = Frames.recv_frame

    def recv_frame(self: Frames, frame: Frame) -> None:
        sizes.append(len(frame.data))
        original(self, frame)

    monkeypatch.setattr(Frames, "recv_frame", recv_frame)
    text = "aä€".encode() * 200_000
    reader = Frames(len(text))
    assert reader.feed(large(TEXT, text)) == ([WebSocketMessage(text)], -(-len(text) // PIECE_BYTES))
    assert max(sizes) == PIECE_BYTES
    assert reader.unfinished_bytes == 0


def test_what_is_unfinished_counts_and_is_freed_without_a_collection() -> None:
    gc.disable()
    try:
        reader = Frames(1 << 20)
        data = large(BINARY, bytes(600_000), fin=False) + large(0, bytes(300_000))
        reader.feed(data[:-10])
        assert reader.unfinished_bytes > 850_000
        kept = weakref.ref(reader)
        reader.free()
        assert (reader.unfinished_bytes, reader.feed(data)) == (0, ([], 0))
        del reader
        assert kept() is None
    finally:
        gc.enable()
