"""A header parsed without h11 gives the same result as with h11, or the same error."""

from __future__ import annotations

import ctypes
import errno
import random
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lean_ovms.errors import RequestError
from lean_ovms.transports import cycle as request_body
from lean_ovms.transports.http11 import request_parser
from lean_ovms.transports.http11.request_parser import HttpRequestParser, RequestHead, parse_simple_head, parse_with_h11
from lean_ovms.util.spool import Spool

USUAL = (
    b"POST /v3/chat/completions HTTP/1.1\r\nHost: localhost:8000\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 2.0\r\nAuthorization: Bearer a b\r\nX-A: 1\r\nx-a: \t2\t \r\nContent-Length: 12\r\n\r\n"
)


def by_h11(raw: bytes) -> RequestHead:
    return parse_with_h11(raw)


def outcome(read, raw: bytes) -> object:
    try:
        return read(raw)
    except RequestError as error:
        return error.status, str(error)


def test_the_usual_head_is_simple() -> None:
    assert parse_simple_head(USUAL) == by_h11(USUAL)
    assert parse_simple_head(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") == by_h11(
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET / HTTP/1.1\r\nHost: x\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\ntransfer-encoding:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1_0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: ²\r\n\r\n".encode("latin-1"),
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: \rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_whatever_can_be_doubted_is_h11s(raw: bytes) -> None:
    assert parse_simple_head(raw) is None


@pytest.mark.parametrize(
    ("line", "host", "path", "query"),
    [
        (b"GET http://evil.example/a%20b?c=d?e HTTP/1.1", "evil.example", "/a b", "c=d?e"),
        (b"POST HTTPS://evil.example:8000 HTTP/1.1", "evil.example:8000", "/", ""),
        (b"GET http://[::1]:80?c HTTP/1.1", "[::1]:80", "/", "c"),
        (b"GET http://evil.example/http://localhost/ HTTP/1.0", "evil.example", "/http://localhost/", ""),
        (b"GET /http://evil.example HTTP/1.1", "localhost", "/http://evil.example", ""),
        (b"GET //evil.example/a HTTP/1.1", "localhost", "//evil.example/a", ""),
        (b"OPTIONS * HTTP/1.1", "localhost", "*", ""),
    ],
)
def test_the_host_of_an_absolute_target_takes_the_place_of_the_header(
    line: bytes, host: str, path: str, query: str
) -> None:
    head = by_h11(line + b"\r\nHost: localhost\r\nA: b\r\n\r\n")
    assert (head.headers, head.path, head.query) == ({"host": host, "a": "b"}, path, query)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_head_that_is_read_here_is_the_one_that_h11_reads(data: st.DataObject) -> None:
    value = st.text(st.sampled_from('ab 0,:;="\t\x85\xa0\xe9\x00\x01\x0b\x7f\r\n'), max_size=6)
    name = st.sampled_from(
        ["Host", "host", "Content-Length", "A", "a", "Accept ", "X-\xe9", "Connection", "Expect", ""]
    )
    line = st.builds("{}:{}".format, name, st.one_of(value, st.sampled_from(["1", " 12 ", "close", "100-continue"])))
    target = st.sampled_from(["/", "/a?b=c?d", "/%41", "/%zz", "/%ff", "*", "/\xe9", "/a b", "/%00"])
    method = st.sampled_from(["GET", "POST", "get", "M-SEARCH"])
    end = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n"])
    lines = data.draw(st.lists(line, max_size=5)) + ["Host: x"] * data.draw(st.sampled_from([0, 1, 1, 1]))
    raw = f"{data.draw(method)} {data.draw(target)} HTTP/1.1" + data.draw(end)
    raw += "".join(each + data.draw(end) for each in lines) + "\r\n"

    read = outcome(parse_simple_head, raw.encode("latin-1"))

    assert read is None or read == outcome(by_h11, raw.encode("latin-1"))


def test_a_usual_head_with_any_byte_changed_is_never_read_otherwise_than_by_h11() -> None:
    rng = random.Random(5)
    here = 0
    for _ in range(4000):
        raw = bytearray(USUAL)
        raw[rng.randrange(len(raw) - 4)] = rng.choice(b"\r\n\t :;,/?%aZ0\x00\x0b\x7f\x80\xff")
        read = outcome(parse_simple_head, bytes(raw))
        here += read is not None
        assert read is None or read == outcome(by_h11, bytes(raw)), bytes(raw)
    assert here > 1000


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_the_same_in_every_cut(size: int, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parser, "LARGE_BODY_BYTES", 30)
    body = bytes(range(100))
    framing = (
        b"Transfer-Encoding: chunked\r\n\r\n64\r\n%b\r\n0\r\n\r\n" if chunked else b"Content-Length: 100\r\n\r\n%b"
    )
    data = (b"POST / HTTP/1.1\r\nHost: x\r\n" + framing % body) * 2 + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    parser, bodies, most = HttpRequestParser(1000, 1000), [], 0
    for start in range(0, len(data), size):
        parser.feed(data[start : start + size])
        while whole := parser.read():
            bodies.append(whole[1].body)
        most = max(most, parser.memory_bytes)
    assert bodies == [body, body, b""]
    assert parser.memory_bytes == 0
    assert size > 7 or most >= 90  # received parts of the body count


FORM_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: Multipart/Form-Data; boundary=b\r\n"


@pytest.mark.parametrize("size", [1, 50, 1000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_form_is_in_a_file(size: int, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parser, "LARGE_BODY_BYTES", 30)
    monkeypatch.setattr(request_body, "SPOOLED_FROM", 40)
    forms = bytes(range(100)), bytes(range(35))
    data = b""
    for one in forms:
        framing = (
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n%b"
        )
        data += FORM_HEAD + framing % (len(one), one)
    parser, seen = HttpRequestParser(1000, 1000), []
    for start in range(0, len(data), size):
        parser.feed(data[start : start + size])
        while whole := parser.read():
            seen.append(whole[1])
    first, second = seen
    assert (first.body, first.size, second.body, second.spool) == (b"", 100, forms[1], None)
    assert first.spool.read(0, 1000) == forms[0]
    first.drop_body()
    assert first.spool.fileno() < 0


def test_a_large_form_takes_no_memory_of_this_process() -> None:
    size = 20 << 20
    parser, piece = HttpRequestParser(1000, size), bytes(262_144)
    tracemalloc.start()
    try:
        parser.feed(FORM_HEAD + b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(0, size, len(piece)):
            assert parser.read() is None
            parser.feed(piece)
        _, request = parser.read() or (None, None)
        assert request is not None
        assert request.size == size
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    request.drop_body()


def test_a_form_that_no_file_can_be_opened_for_stays_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lean_ovms.util.spool.Spool", refusing)
    parser, form = HttpRequestParser(1000, 1 << 20), bytes(300_000)
    parser.feed(FORM_HEAD + b"Content-Length: 300000\r\n\r\n" + form)
    whole = parser.read()
    assert whole is not None
    assert whole[1].body == form
    assert "kept in memory" in caplog.text


def refusing(*_: object) -> None:
    raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_form_that_cannot_be_stored_is_a_503(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spool, "write", refusing)
    parser = HttpRequestParser(1000, 1 << 20)
    framing = b"Transfer-Encoding: chunked\r\n\r\n493e0\r\n" if chunked else b"Content-Length: 600000\r\n\r\n"
    parser.feed(FORM_HEAD + framing + bytes(300_000))
    with pytest.raises(RequestError) as caught:
        parser.read()
    assert caught.value.status == 503


def test_a_client_that_leaves_leaves_no_file() -> None:
    parser = HttpRequestParser(1000, 1 << 20)
    parser.feed(FORM_HEAD + b"Content-Length: 600000\r\n\r\n" + bytes(300_000))
    assert parser.read() is None
    spool = parser._body._spool
    assert spool is not None
    parser.discard()
    assert spool.fileno() < 0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_does_not_grow(chunked: bool) -> None:
    """Growing might copy everything in one call. It gets all its memory once it is large, and becomes the body
    without a copy."""
    size = 3 * request_body.GROWING_BODY_BYTES
    head = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % size
    parser, sizes = HttpRequestParser(1000, size), set()
    parser.feed(b"POST / HTTP/1.1\r\nHost: x\r\n" + head)
    piece = bytes(65536)
    for _ in range(size // len(piece)):
        assert parser.read() is None
        parser.feed(b"10000\r\n%b\r\n" % piece if chunked else piece)
        if parser._body.tell() > request_body.GROWING_BODY_BYTES:
            sizes.add(sys.getsizeof(parser._body._memory))
    if chunked:
        parser.feed(b"0\r\n\r\n")
    buffer = parser._body._memory.getbuffer() if not chunked else b""
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if not chunked else 0
    del buffer
    whole = parser.read()
    assert whole is not None
    assert len(sizes) == 1
    assert whole[1].body == bytes(size)
    assert chunked or address - id(whole[1].body) < 64  # the bytes follow the object's header
