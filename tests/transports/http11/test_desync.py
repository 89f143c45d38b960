"""Bytes that a proxy in front of the server may interpret differently: the requests that are served, and the end.

A stream is served in the same way as a whole, in two pieces at every position, and byte by byte. Anything ambiguous
ends the connection with an error, so that what follows is not taken for a request (RFC 9112 11.2, h11's
CVE-2025-43859).
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from lean_ovms.config import Config
from lean_ovms.transports.http11.protocol import Phase
from lean_ovms.types import Request, Response
from tests.fuzz.targets import served
from tests.transports.http11.fakes import Body, Wire, jump_loop

CONFIG = Config(max_header_bytes=2048, max_body_bytes=4096)
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
P = b"POST /a HTTP/1.1\r\nHost: x\r\n"
CHUNKED = P + b"Transfer-Encoding: chunked\r\n\r\n"


class Case(NamedTuple):
    """The expected result of a stream.

    `paths` are those of the served requests, `body` is that of the first. `end` is the status of the error, or 0 if the
    connection continues.
    """

    data: bytes
    paths: list[str]
    end: int = 0
    body: bytes = b""


BOTH, FIRST, NONE = ["/a", "/next"], ["/a"], list[str]()
END = b"0\r\n\r\n"

CASES = {
    # pipelining
    "two requests": Case(P + b"Content-Length: 2\r\n\r\nhi" + NEXT, BOTH, body=b"hi"),
    "chunked, then another": Case(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + NEXT, BOTH, body=b"hi"),
    "blank lines between": Case(P + b"Content-Length: 0\r\n\r\n\r\n\r\n" + NEXT, BOTH),
    "no length is no body": Case(P + b"\r\n" + NEXT, BOTH),
    "a body that looks like a request": Case(P + b"Content-Length: 31\r\n\r\n" + NEXT + NEXT, BOTH, body=NEXT),
    "noise behind a body": Case(P + b"Content-Length: 2\r\n\r\nhiX\r\n\r\n", FIRST, 400, b"hi"),
    "close, then another": Case(P + b"Connection: close\r\n\r\n" + NEXT, FIRST),
    # two framings
    "length and chunked": Case(P + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + END + NEXT, NONE, 400),
    "chunked and length": Case(P + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + END + NEXT, NONE, 400),
    "length 0 and chunked": Case(P + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + NEXT, NONE, 400),
    "two lengths": Case(P + b"Content-Length: 0\r\nContent-Length: 33\r\n\r\n" + NEXT, NONE, 400),
    "lengths in a list": Case(P + b"Content-Length: 0, 33\r\n\r\n" + NEXT, NONE, 400),
    "an equal length twice": Case(P + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi" + NEXT, BOTH, body=b"hi"),
    "length with a sign": Case(P + b"Content-Length: +0\r\n\r\n" + NEXT, NONE, 400),
    "length in octal is decimal": Case(P + b"Content-Length: 002\r\n\r\nhi" + NEXT, BOTH, body=b"hi"),
    "chunked, not last": Case(P + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + NEXT, NONE, 501),
    "chunked in upper case": Case(P + b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n" + NEXT, BOTH),
    "chunked with a tab": Case(P + b"Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n" + NEXT, BOTH),
    "almost chunked": Case(P + b"Transfer-Encoding: chunke\r\n\r\n0\r\n\r\n" + NEXT, NONE, 501),
    "chunked with a vertical tab": Case(P + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + NEXT, NONE, 400),
    "chunked in HTTP/1.0": Case(b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT, NONE, 400),
    "length with a space before": Case(P + b"Content-Length : 33\r\n\r\n" + NEXT, NONE, 400),
    "underscore is another name": Case(P + b"Content_Length: 33\r\n\r\n" + NEXT, BOTH),
    "length that is negative": Case(P + b"Content-Length: -5\r\n\r\n" + NEXT, NONE, 400),
    "length in hex": Case(P + b"Content-Length: 0x5\r\n\r\n" + NEXT, NONE, 400),
    "length with an underscore": Case(P + b"Content-Length: 1_0\r\n\r\n" + NEXT, NONE, 400),
    "length of nothing": Case(P + b"Content-Length: \r\n\r\n" + NEXT, NONE, 400),
    "length in other digits": Case(P + "Content-Length: \u0665\r\n\r\n".encode() + NEXT, NONE, 400),
    "length of 500 digits": Case(P + b"Content-Length: " + b"9" * 500 + b"\r\n\r\n" + NEXT, NONE, 400),
    "length of 20 digits": Case(P + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n" + NEXT, NONE, 413),
    "another coding": Case(P + b"Transfer-Encoding: gzip\r\n\r\n" + NEXT, NONE, 501),
    "another coding, then chunked": Case(P + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + NEXT, NONE, 501),
    "chunked twice": Case(P + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + NEXT, NONE, 501),
    "chunked in two fields": Case(P + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + NEXT, NONE, 501),
    "identity": Case(P + b"Transfer-Encoding: identity\r\n\r\n" + NEXT, NONE, 501),
    "chunked in quotes": Case(P + b'Transfer-Encoding: "chunked"\r\n\r\n' + NEXT, NONE, 501),
    # lines
    "two spaces in the first line": Case(b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "a space behind the version": Case(b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "a method outside ASCII": Case(b"G\xe9T / HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "a TLS handshake": Case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", NONE, 400),
    "a zero byte": Case(b"\x00", NONE, 400),
    "obs-fold in a value joins": Case(P + b"X: a\r\n b\r\n\r\n" + NEXT, BOTH),
    "obs-fold hides a length": Case(P + b"X: a\r\n Content-Length: 33\r\n\r\n" + NEXT, BOTH),
    "obs-fold of a length": Case(P + b"Content-Length:\r\n 2\r\n\r\nhi" + NEXT, BOTH, body=b"hi"),
    "obs-fold at the start": Case(b"POST /a HTTP/1.1\r\n Host: x\r\n\r\n" + NEXT, NONE, 400),
    "bare LF ends lines": Case(P.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\nhi" + NEXT, BOTH, body=b"hi"),
    "bare CR in a value": Case(P + b"X: a\rContent-Length: 33\r\n\r\n" + NEXT, NONE, 400),
    "bare CR for a line end": Case(b"POST /a HTTP/1.1\rHost: x\r\r" + NEXT, NONE, 400),
    "NUL in a value": Case(P + b"X: \x00\r\n\r\n" + NEXT, NONE, 400),
    "no colon": Case(P + b"Content-Length 33\r\n\r\n" + NEXT, NONE, 400),
    "no name": Case(P + b": x\r\n\r\n" + NEXT, NONE, 400),
    # targets
    "absolute form": Case(b"POST http://y/a HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, BOTH),
    "absolute form without a path": Case(b"GET http://y HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, ["/", "/next"]),
    **{
        f"absolute form {target!r}": Case(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target + NEXT, NONE, 400)
        for target in b"http:///a http:// http://?a http://:80/a http://u@y/a http://y#a https:/y http:y".split()
    },
    "absolute form of another scheme": Case(b"GET gopher://y/a HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "asterisk": Case(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, ["*", "/next"]),
    "authority": Case(b"CONNECT y:443 HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "space in the target": Case(b"GET /a /b HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "no target": Case(b"GET HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "two hosts": Case(b"POST /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" + NEXT, NONE, 400),
    "no host": Case(b"POST /a HTTP/1.1\r\n\r\n" + NEXT, NONE, 400),
    **{
        f"target {target!r}": Case(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target + NEXT, NONE, 400)
        for target in b"/\xe9 /% /%zz /%c3%28 /%ff /%00 /a%0ab /%7f host:443 a/b /%u0041".split()
    },
    # chunks
    **{
        f"chunk {chunk!r}": Case(CHUNKED + chunk + NEXT, NONE, 400)
        for chunk in (
            *(b"zz\r\n", b"+3\r\nabc\r\n", b"3\nabc\r\n0\r\n\r\n", b"3\r\nabc\n\n0\r\n\r\n"),
            *(b"3 3\r\nabc\r\n", b" 3\r\nabc\r\n", b"\r\n"),
        )
    },
    "chunk extension": Case(CHUNKED + b'2;a="b;c"\r\nhi\r\n0\r\n\r\n' + NEXT, BOTH, body=b"hi"),
    "a chunk extension without end": Case(CHUNKED + b"2;" + b"x" * 4000, NONE, 431),
    "a chunk extension of a line feed": Case(CHUNKED + b"2;a\nhi\r\n0\r\n\r\n" + NEXT, NONE, 400),
    "chunk size too large": Case(CHUNKED + b"f" * 21 + b"\r\n" + NEXT, NONE, 400),
    "chunk size beyond the limit": Case(CHUNKED + b"ffffff\r\n" + b"x" * 5000, NONE, 413),
    "chunk without its end": Case(CHUNKED + b"2\r\nhiXX0\r\n\r\n" + NEXT, NONE, 400),
    "negative chunk": Case(CHUNKED + b"-1\r\n\r\n0\r\n\r\n" + NEXT, NONE, 400),
    "hex with a prefix": Case(CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n" + NEXT, NONE, 400),
    "trailers are dropped": Case(CHUNKED + b"0\r\nContent-Length: 33\r\nHost: y\r\n\r\n" + NEXT, BOTH),
    "trailers without end": Case(CHUNKED + b"0\r\n" + b"A: b\r\n" * 900, NONE, 431),
    "trailers beyond the limit": Case(CHUNKED + b"0\r\n" + b"A: b\r\n" * 900 + b"\r\n" + NEXT, NONE, 431),
    "a chunk extension beyond the limit": Case(CHUNKED + b"2;" + b"x" * 4000 + b"\r\nhi\r\n" + END + NEXT, NONE, 431),
    "trailers that end with line feeds": Case(CHUNKED + b"0\r\nA: b\n\n" + NEXT, NONE, 400),
    "a folded trailer": Case(CHUNKED + b"0\r\nA: b\r\n c\r\n\r\n" + NEXT, NONE, 400),
    "a malformed trailer": Case(CHUNKED + b"0\r\nbad\r\n\r\n" + NEXT, NONE, 400),
    # versions and methods
    "HTTP/1.0 is one request": Case(b"GET /a HTTP/1.0\r\n\r\n" + NEXT, FIRST),
    "HTTP/1.0 is kept on request": Case(b"GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n" + NEXT, BOTH),
    "HTTP/1.0 with both options": Case(b"GET /a HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n" + NEXT, FIRST),
    "HTTP/0.9": Case(b"GET /a\r\n\r\n" + NEXT, NONE, 400),
    "HTTP/2 with lines": Case(b"GET / HTTP/2.0\r\nHost: x\r\n\r\n" + NEXT, NONE, 505),
    "HTTP/0.9 by its number": Case(b"GET / HTTP/0.9\r\n\r\n" + NEXT, NONE, 505),
    "HTTP/2": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NONE, 505),
    "a version with more digits": Case(b"GET /a HTTP/1.11\r\nHost: x\r\n\r\n" + NEXT, NONE, 400),
    "HEAD has no body": Case(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, BOTH),
    "GET with a body": Case(b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi" + NEXT, BOTH, body=b"hi"),
    "expect, and the body at once": Case(
        P + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi" + NEXT, BOTH, body=b"hi"
    ),
    "expect something else": Case(P + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\nhi" + NEXT, BOTH, body=b"hi"),
    "an upgrade is not taken": Case(P + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + NEXT, BOTH),
    # sizes
    "a header of a megabyte": Case(P + b"X: " + b"y" * 2**20 + b"\r\n\r\n" + NEXT, NONE, 431),
    "a target of a megabyte": Case(b"GET /" + b"y" * 2**20, NONE, 431),
    "a body beyond the limit": Case(P + b"Content-Length: 5000\r\n\r\n" + NEXT, NONE, 413),
}  # fmt: skip


def serve(pieces: list[bytes]) -> tuple[list[Request], list[int], Phase]:
    """Returns the served requests, the statuses of errors, and the final state of the session."""
    requests, refusals, phase = served(pieces, CONFIG, lambda: Response(200, [], b"ok"))
    return requests, [int(refusal.split()[1]) for refusal in refusals], phase


@pytest.mark.parametrize("name", CASES)
def test_t16_a_stream_of_bytes_has_one_reading(name: str) -> None:
    case = CASES[name]
    whole = serve([case.data])
    requests, refusals, phase = whole
    assert [request.path for request in requests] == case.paths
    assert refusals == ([case.end] if case.end else [])
    assert (phase is Phase.CLOSED) is (bool(case.end) or "/next" not in case.paths)
    assert not case.body or requests[0].body == case.body
    if len(case.data) < 10_000:
        assert serve([case.data[at : at + 1] for at in range(len(case.data))]) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_cut_gives_another_reading(name: str) -> None:
    data = CASES[name].data
    whole = serve([data])
    for at in range(1, min(len(data), 400)):
        assert serve([data[:at], data[at:]]) == whole, at


# --- leaving early ---------------------------------------------------------------------------------------------------

TALK = P + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi" + CHUNKED + b"2\r\nhi\r\n0\r\nA: b\r\n\r\n" + NEXT


@pytest.mark.parametrize("how", ["shuts", "resets"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_peer_may_leave_in_every_state(how: str, stream: bool) -> None:
    """After any number of bytes, with an answer due, being sent, or sent: nothing is left, and everything is closed
    once."""
    for at in range(0, len(TALK) + 1, 3):
        bodies: list[Body] = []

        async def handle(request: Request, bodies: list[Body] = bodies) -> Response:
            if not stream:
                return Response(200, [], b"ok")
            bodies.append(Body(b"a", 1, b"b"))
            return Response(200, [], bodies[-1])

        with jump_loop() as loop:
            it = Wire(loop, handle, CONFIG)
            it.transport.peer_sends(TALK[:at])
            it.run(0.5)
            if not it.transport.closing:
                it.transport.peer_shuts() if how == "shuts" else it.transport.peer_resets()
            it.run(200)
            assert it.transport.lost
            assert (it.server.active_requests, it.server.reserved_bytes, len(it.server.connections)) == (0, 0, 0)
        assert [body.closed for body in bodies] == [1] * len(bodies)
