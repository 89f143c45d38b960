"""Sessions byte by byte and with every cut. h11's client side parses the answers."""

from __future__ import annotations

import itertools
import json
import time
from email.utils import formatdate
from typing import Any

import h11
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import RequestTimeout, TooManyRequests
from lean_ovms.transports.http11 import request_parser as reader_module
from lean_ovms.transports.http11.protocol import CONTINUE, Phase, ServerProtocol
from lean_ovms.types import Request, Response
from lean_ovms.types.push import Sink
from tests.transports.http11.fakes import undated

CONFIG = Config(max_header_bytes=1024, max_body_bytes=2048)
HOST = b"Host: x\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /v1/chat HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;name=value\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"
)


class Stream:
    """A streamed body. Sending it fails, because these tests do not send it."""

    async def push_to(self, sink: Sink[bytes]) -> None:
        raise AssertionError

    async def aclose(self) -> None:
        pass


def ok(body: bytes = b"ok") -> Response:
    return Response(200, [("Content-Type", "text/plain")], body)


def serve(*pieces: bytes, config: Config = CONFIG) -> tuple[list[Request], bytes, ServerProtocol]:
    """Feeds pieces, and answers every request with 200. Returns the requests, all sent bytes, and the session."""
    session = ServerProtocol(config)
    requests: list[Request] = []
    sent = b""
    for piece in pieces:
        session.feed(piece)
        while True:
            request = session.next_request()
            sent += session.take_outgoing()
            if request is None and not session.has_more:
                break
            if request is not None:
                requests.append(request)
                sent += session.start_response(ok())
    return requests, sent, session


def refused(data: bytes, config: Config = CONFIG) -> tuple[int, dict[str, Any]]:
    """Returns status and error object for data that is rejected as a whole and byte by byte, before the handler is
    called."""
    outcomes = []
    for pieces in ([data], [bytes([byte]) for byte in data]):
        requests, sent, session = serve(*pieces, config=config)
        assert requests == []
        assert session.phase is Phase.CLOSED
        head, _, body = sent.removeprefix(CONTINUE).partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert b"Content-Type: application/json" in head
        assert f"Content-Length: {len(body)}".encode() in head
        outcomes.append((int(head.split()[1]), json.loads(body)["error"]))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def read_back(data: bytes, method: str = "GET") -> tuple[h11.Response, bytes, bool]:
    """Returns the answer in data as h11's client parses it, its body, and whether the connection may be reused."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    body, head = b"", None
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA, f"the answer is not complete: {data!r}"
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
    assert head is not None
    return head, body, client.their_state is h11.DONE


# --- requests in


def test_a_request_is_whole() -> None:
    requests, _, session = serve(
        b"POST /v1/chat?a=b%20c HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-a:  2 \r\n"
        b"X-Latin: \xe9\r\nContent-Length: 2\r\n\r\nhi"
    )
    assert requests == [
        Request(
            "POST", "/v1/chat", "a=b%20c", {"host": "x", "x-a": "1, 2", "x-latin": "é", "content-length": "2"}, b"hi"
        )
    ]
    assert session.phase is Phase.IDLE


@pytest.mark.parametrize("data", [GET, POST, CHUNKED])
def test_a_request_is_handed_out_with_its_last_byte(data: bytes) -> None:
    session = ServerProtocol(CONFIG)
    session.feed(data[:-1])
    assert session.next_request() is None
    assert session.take_outgoing() == b""
    session.feed(data[-1:])
    assert session.next_request() is not None
    assert session.phase is Phase.RESPONSE


def test_pipelined_requests_come_out_one_after_the_other() -> None:
    session = ServerProtocol(CONFIG)
    session.feed(POST + GET)
    first = session.next_request()
    assert first is not None
    assert first.body == b"hello"
    assert session.next_request() is None
    assert session.pipelined_bytes == len(GET)
    session.start_response(ok())
    second = session.next_request()
    assert second is not None
    assert second.path == "/v1/models"


def test_nothing_is_read_after_the_client_said_close() -> None:
    requests, sent, session = serve(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n" + GET)
    assert len(requests) == 1
    assert sent.count(b"HTTP/1.1") == 1
    assert session.phase is Phase.CLOSED
    assert session.client_closes


def test_phases_follow_the_peer() -> None:
    session = ServerProtocol(CONFIG)
    phases = []
    for piece in (b"\r\n", b"POST / HTTP/1.1\r\nHo", b"st: x\r\nContent-Length: 2\r\n\r\n", b"a", b"b"):
        session.feed(piece)
        session.next_request()
        phases.append(session.phase)
    assert phases == [Phase.IDLE, Phase.HEAD, Phase.BODY, Phase.BODY, Phase.RESPONSE]
    session.start_response(ok())
    assert session.phase is Phase.IDLE


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/v1/models/org%2Fname%20x", "/v1/models/org/name x", ""),
        ("/caf%C3%A9?q=%zz", "/café", "q=%zz"),
        ("http://host:80/v1/models?a=1", "/v1/models", "a=1"),
        ("HTTPS://host", "/", ""),
        ("http://host?a", "/", "a"),
        ("*", "*", ""),
        ("//double", "//double", ""),
        ("/a?b?c", "/a", "b?c"),
        ("/a%3Fb", "/a?b", ""),
    ],
)
def test_request_targets(target: str, path: str, query: str) -> None:
    (request,), _, _ = serve(f"OPTIONS {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (request.path, request.query) == (path, query)


def test_an_error_text_does_not_repeat_the_request() -> None:
    _, error = refused(b"GET / HTTP/1.1\r\nHost: x\r\nSecret Key: abc\r\n\r\n")
    assert error["message"] == "malformed HTTP request: illegal header line"


def test_an_error_text_names_a_header_with_its_colon() -> None:
    status, error = refused(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n")
    assert status == 501
    assert error["message"] == "malformed HTTP request: Only Transfer-Encoding: chunked is supported"


# --- refusals


def test_a_head_of_just_the_limit_is_served() -> None:
    data = b"GET / HTTP/1.1\r\nHost: x\r\nX: \r\n\r\n"
    padded = data.replace(b"X: ", b"X: " + b"a" * (1024 - len(data)))
    assert len(padded) == 1024
    assert len(serve(padded)[0]) == 1
    assert len(serve(*[bytes([byte]) for byte in padded])[0]) == 1
    assert refused(padded.replace(b"X: ", b"X: a"))[0] == 431


def test_too_many_header_lines_are_431() -> None:
    lines = b"".join(b"a%d:\r\n" % i for i in range(reader_module.MAX_HEADER_LINES))
    status, error = refused(b"GET / HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n", Config(max_header_bytes=65536))
    assert (status, error["code"]) == (431, "headers_too_large")


def test_a_chunked_body_is_413_when_it_passes_the_limit() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"400\r\n" + b"a" * 1024 + b"\r\n"
    assert len(serve(head + chunk * 2 + b"0\r\n\r\n")[0]) == 1
    assert refused(head + chunk * 2 + b"1\r\na")[0] == 413


def test_many_small_chunks_do_not_hold_the_loop() -> None:
    session = ServerProtocol(Config())
    count = 3 * reader_module.MAX_CHUNKS_PER_READ
    session.feed(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    session.feed(b"1\r\na\r\n" * count + b"0\r\n\r\n")
    turns = 1
    while (request := session.next_request()) is None:
        assert session.has_more
        turns += 1
    assert request.body == b"a" * count
    assert turns == 4


def test_the_doors_own_errors_can_be_read_by_pages_of_other_origins() -> None:
    config = Config(allowed_origins="https://a.example", allow_credentials=True)
    _, sent, _ = serve(b"nonsense\r\n\r\n", config=config)
    head, _, _ = read_back(sent)
    headers = dict(head.headers)
    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert headers[b"access-control-allow-credentials"] == b"true"


def test_a_refused_head_request_gets_no_body() -> None:
    _, sent, _ = serve(b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")
    head, body, reusable = read_back(sent, "HEAD")
    assert (head.status_code, body, reusable) == (413, b"", False)


def test_a_refusal_after_a_head_request_has_its_body() -> None:
    _, sent, _ = serve(GET.replace(b"GET", b"HEAD") + b"nonsense\r\n\r\n")
    assert json.loads(sent.rpartition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_a_late_request_is_answered_408() -> None:
    session = ServerProtocol(CONFIG)
    session.feed(POST[:-2])
    session.next_request()
    session.refuse(RequestTimeout("too slow"))
    head, body, reusable = read_back(session.take_outgoing(), "POST")
    assert head.status_code == 408
    assert not reusable
    assert json.loads(body)["error"]["code"] == "request_timeout"
    session.feed(POST[-2:])
    assert session.next_request() is None


# --- 100-continue


def expecting(length: bytes, version: bytes = b"1.1") -> bytes:
    return b"POST / HTTP/" + version + b"\r\nHost: x\r\nExpect: 100-Continue\r\n" + length + b"\r\n"


def test_100_continue_is_sent_once_when_the_body_is_wanted() -> None:
    session = ServerProtocol(CONFIG)
    session.feed(expecting(b"Content-Length: 2\r\n"))
    assert session.next_request() is None
    assert session.take_outgoing() == CONTINUE
    session.feed(b"h")
    assert session.next_request() is None
    assert session.take_outgoing() == b""
    session.feed(b"i")
    request = session.next_request()
    assert request is not None
    assert request.body == b"hi"


def test_100_continue_again_for_the_next_request() -> None:
    data = expecting(b"Transfer-Encoding: chunked\r\n")
    _, sent, _ = serve(data, b"0\r\n\r\n", data, b"0\r\n\r\n")
    assert sent.count(CONTINUE) == 2


def test_no_100_for_a_body_that_is_refused_empty_here_or_http_1_0() -> None:
    assert CONTINUE not in serve(expecting(b"Content-Length: 4096\r\n"))[1]
    assert CONTINUE not in serve(expecting(b"Content-Length: 0\r\n"))[1]
    assert CONTINUE not in serve(expecting(b""))[1]
    assert CONTINUE not in serve(expecting(b"Content-Length: 2\r\n") + b"h", b"i")[1]
    assert CONTINUE not in serve(expecting(b"Content-Length: 2\r\n", b"1.0"), b"hi")[1]


# --- answers out


def begun(data: bytes = GET) -> ServerProtocol:
    session = ServerProtocol(CONFIG)
    session.feed(data)
    assert session.next_request() is not None
    return session


def test_every_response_has_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (0, 951_827_696, 1_796_022_039):
        monkeypatch.setattr(time, "time", lambda: seconds + 0.9)  # noqa: B023 - called at once
        sent = begun().start_response(ok())
        assert dict(read_back(sent)[0].headers)[b"date"].decode() == formatdate(seconds, usegmt=True)
        assert b"server:" not in sent.lower()


def test_a_streamed_answer_is_chunked() -> None:
    session = begun()
    sent = session.start_response(Response(200, [], Stream()))
    assert session.expects_body
    sent += session.chunk(b"data: 1\n\n") + session.chunk(b"") + session.chunk(b"x" * 300) + session.end_body()
    head, body, reusable = read_back(sent)
    assert body == b"data: 1\n\n" + b"x" * 300
    assert dict(head.headers)[b"transfer-encoding"] == b"chunked"
    assert reusable
    assert session.phase is Phase.IDLE


KEPT_10 = b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi"


def test_http_1_0_is_kept_if_it_asks_for_that_and_the_answer_says_so() -> None:
    session = begun(KEPT_10)
    assert b"\r\nConnection: keep-alive\r\n" in session.start_response(ok())
    assert session.phase is Phase.IDLE
    session.feed(KEPT_10)
    assert session.next_request() is not None
    assert b"\r\nConnection: close\r\n" in session.start_response(Response(200, [], b"", close=True))
    assert session.phase is Phase.CLOSED


def test_the_end_of_a_stream_to_http_1_0_is_the_end_of_the_connection_also_if_it_is_to_be_kept() -> None:
    session = begun(KEPT_10)
    assert b"Connection: close" in session.start_response(Response(200, [], Stream()))
    assert session.end_body() == b""
    assert session.phase is Phase.CLOSED


def test_head_gets_the_headers_of_get_and_no_body() -> None:
    for body in (b"hello", Stream()):
        get = begun(GET).start_response(Response(200, [("A", "b")], body)).partition(b"\r\n\r\n")[0]
        session = begun(GET.replace(b"GET", b"HEAD"))
        sent = session.start_response(Response(200, [("A", "b")], body))
        assert sent == get + b"\r\n\r\n"
        assert not session.expects_body
        assert session.phase is Phase.IDLE


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status: int) -> None:
    for body in (b"", b"dropped", Stream()):
        session = begun()
        head, received, reusable = read_back(session.start_response(Response(status, [], body)))
        assert dict(head.headers).keys() == {b"date"}
        assert received == b""
        assert reusable
        assert not session.expects_body


def test_the_door_decides_the_framing_whatever_the_handler_says() -> None:
    lies = [("content-length", "99"), ("Transfer-Encoding", "gzip"), ("Connection", "keep-alive"), ("X", "y")]
    sent = undated(begun().start_response(Response(200, lies, b"ok")))
    assert sent == b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("how", ["flag", "header", "session", "request", "http/1.0"])
def test_ways_to_end_the_connection(how: str) -> None:
    request = GET.replace(HOST, HOST + b"Connection: foo, CLOSE\r\n") if how == "request" else GET
    session = begun(request.replace(b"1.1", b"1.0") if how == "http/1.0" else request)
    session.closing = how == "session"
    headers = [("Connection", "Close")] if how == "header" else []
    head, _, reusable = read_back(session.start_response(Response(200, headers, b"ok", close=how == "flag")))
    assert dict(head.headers)[b"connection"] == b"close"
    assert not reusable
    assert session.phase is Phase.CLOSED
    session.feed(GET)
    assert session.next_request() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nY: b"),
        ("X", "a\nb"),
        ("X", "a\rb"),
        ("X", "\0"),
        ("X\r\nY", "a"),
        ("", "a"),
        ("X ", "a"),
        ("é", "a"),
    ],
)
def test_headers_cannot_be_injected(name: str, value: str) -> None:
    session = begun()
    with pytest.raises(ValueError, match="illegal header"):
        session.start_response(Response(200, [(name, value)], b"ok"))
    assert session.phase is Phase.RESPONSE
    assert b"500 Internal Server Error" in session.start_response(Response(500))  # the exchange can still be answered


@pytest.mark.parametrize("status", [0, 99, 100, 101, 199, 600, 1000])
def test_statuses_that_do_not_end_an_exchange_are_not_sent(status: int) -> None:
    with pytest.raises(ValueError, match="status"):
        begun().start_response(Response(status))


def test_unusual_statuses_and_characters_are_sent() -> None:
    sent = begun().start_response(Response(499, [("X", "é\t日")]))
    head, _, _ = read_back(sent)
    assert head.status_code == 499
    assert dict(head.headers)[b"x"] == b"\xe9\t?"


def test_an_error_carries_its_headers() -> None:
    session = begun()
    head, body, _ = read_back(session.start_response(session.error_response(TooManyRequests("full"))))
    assert head.status_code == 429
    assert dict(head.headers)[b"retry-after"] == b"1"
    assert json.loads(body)["error"]["code"] == "queue_full"


def test_answers_read_back_for_every_method_body_and_status() -> None:
    cases = itertools.product(("GET", "HEAD", "POST"), (b"", b"body"), (200, 204, 304, 404, 503))
    for method, body, status in cases:
        session = begun(GET.replace(b"GET", method.encode()))
        head, received, reusable = read_back(session.start_response(Response(status, [], body)), method)
        assert head.status_code == status
        assert received == (b"" if method == "HEAD" or status in (204, 304) else body)
        assert reusable


def test_what_the_transport_refuses_is_in_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lean_ovms.access"):
        session = ServerProtocol(Config(), "192.0.2.1")
        session.feed(b"GET / HTTP/1.1\r\nbroken\r\n\r\n")
        session.next_request()
        assert b" 400 " in session.take_outgoing()
    [line] = [r.getMessage() for r in caplog.records]
    assert line.startswith("192.0.2.1 - - 400 ")
