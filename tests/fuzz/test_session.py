"""Any bytes, cut anywhere, become requests, or one error that ends the connection, and nothing else; the outcome does
not depend on the cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lean_ovms.config import Config
from lean_ovms.transports.http11.protocol import Phase
from lean_ovms.types import Request
from tests.fuzz import examples
from tests.fuzz.targets import served

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
