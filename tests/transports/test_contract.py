"""The contract of transports, tested with every transport.

The handler runs in a task of its own, which is cancelled when the client disconnects. The response is closed exactly
once, whatever happens. Limits are checked before the handler runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import Forbidden, TooManyRequests, Unavailable
from lean_ovms.features.asgi.adapter import Asgi, asgi
from lean_ovms.transports import cycle as request_body
from lean_ovms.types import Request, Response
from tests.streams import Iterated
from tests.transports.transports import ALL, LIMIT, NETWORK, AsgiDeaf, TransportClient
from tests.waiting import until

PIECES = 5
pytestmark = pytest.mark.usefixtures("real_loop")


class Engine(Iterated):
    """Resources that a request holds while it is served: taken once, returned once. A gate is in front of every
    event."""

    def __init__(self) -> None:
        self.taken = self.released = self.asked = 0
        self.gate = asyncio.Semaphore(0)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for i in range(PIECES):
            await self.gate.acquire()
            yield b"data: %d\n\n" % i

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.released += 1

    async def stream(self, request: Request) -> Response:
        """Acts like a streaming endpoint: takes resources, waits until it is accepted, and returns the body."""
        self.asked += 1
        self.taken += 1
        try:
            await self.gate.acquire()
        except BaseException:
            await self.aclose()
            raise
        return Response(200, [("Content-Type", "text/event-stream")], self)

    async def unary(self, request: Request) -> Response:
        """Acts like a unary endpoint: takes resources, waits for everything, returns them, and answers."""
        self.asked += 1
        self.taken += 1
        try:
            for _ in range(1 + PIECES):
                await self.gate.acquire()
        finally:
            await self.aclose()
        return Response(200, [("Content-Type", "application/json")], b"{}")

    async def refuse(self, request: Request) -> Response:
        """Acts like the API: errors are responses."""
        self.asked += 1
        error = TooManyRequests("the queue is full")
        return Response(error.status, error.headers(), error.to_bytes())

    def let(self, events: int) -> None:
        """Opens the gate for a number of events."""
        for _ in range(events):
            self.gate.release()


@asynccontextmanager
async def connected(transport: str, kind: str) -> AsyncIterator[tuple[Engine, TransportClient]]:
    """Yields an engine behind a transport, which must have returned everything at the end."""
    engine = Engine()
    client: TransportClient = ALL[transport](getattr(engine, kind))
    yield engine, client
    await client.stop()
    assert engine.released == engine.taken


@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize("kind", ["stream", "unary"])
async def test_a_client_that_stays_gets_everything(transport: str, kind: str) -> None:
    async with connected(transport, kind) as (engine, client):
        await client.ask("POST", "/x", b"{}")
        engine.let(1 + PIECES)
        await until(lambda: client.whole)
        expected = b"".join(b"data: %d\n\n" % i for i in range(PIECES)) if kind == "stream" else b"{}"
        assert (client.status, client.data) == (200, expected)
        await until(lambda: engine.released == 1)


@pytest.mark.parametrize("transport", ALL)
async def test_pieces_leave_when_they_come(transport: str) -> None:
    async with connected(transport, "stream") as (engine, client):
        await client.ask("POST", "/x", b"{}")
        engine.let(1)
        for i in range(PIECES):
            await until(lambda: client.data.count(b"data") == i)  # noqa: B023
            assert not client.whole
            engine.let(1)
        await until(lambda: client.whole)


@pytest.mark.parametrize("transport", NETWORK)
async def test_the_status_is_known_when_the_request_is_accepted(transport: str) -> None:
    async with connected(transport, "stream") as (engine, client):
        await client.ask("POST", "/x", b"{}")
        await until(lambda: engine.taken == 1)
        assert client.status is None
        engine.let(1)
        await until(lambda: client.status == 200)
        assert client.data == b""
        engine.let(PIECES)
        await until(lambda: client.whole)
        await until(lambda: engine.released == 1)


@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize("kind", ["stream", "unary"])
@pytest.mark.parametrize("events", ["before the start", 0, 1, 2, 4])
async def test_a_client_that_leaves_frees_the_engine_at_once(transport: str, kind: str, events: int | str) -> None:
    """`events` is how far the request got before the disconnect: after 1 it is accepted, after 2 one piece is sent,
    ..."""
    engine = Engine()
    client: TransportClient = ALL[transport](getattr(engine, kind))
    await client.ask("POST", "/x", b"{}")
    if isinstance(events, int):
        await until(lambda: engine.taken == 1)
        engine.let(events)
        await until(lambda: engine.gate.locked())
        if kind == "stream":
            await until(lambda: client.data.count(b"data") == max(0, events - 1))
    await client.leave()
    await until(lambda: engine.released == engine.taken)
    await client.stop()
    assert engine.released == engine.taken <= 1
    assert not client.whole


@pytest.mark.parametrize("transport", [name for name in NETWORK if name != "socket"])
async def test_releasing_is_not_interrupted_by_leaving(transport: str) -> None:
    releasing, go = asyncio.Event(), asyncio.Event()

    class Slow(Engine):
        async def aclose(self) -> None:
            releasing.set()
            await go.wait()
            self.released += 1

    engine = Slow()
    client: TransportClient = NETWORK[transport](engine.stream)
    await client.ask("POST", "/x", b"{}")
    engine.let(1 + PIECES)
    await releasing.wait()
    await client.leave()
    for _ in range(5):
        await asyncio.sleep(0)
    go.set()
    await until(lambda: engine.released == 1)
    await client.stop()


@pytest.mark.parametrize("transport", ALL)
async def test_a_refusal_is_an_answer(transport: str) -> None:
    async with connected(transport, "refuse") as (_, client):
        await client.ask("POST", "/x", b"{}")
        await until(lambda: client.whole)
        assert client.status == 429
        assert json.loads(client.data)["error"]["code"] == "queue_full"


@pytest.mark.parametrize("transport", NETWORK)
@pytest.mark.parametrize("kind", ["stream", "unary"])
async def test_head_has_no_body_and_a_stream_is_closed_unread(transport: str, kind: str) -> None:
    async with connected(transport, kind) as (engine, client):
        await client.ask("HEAD", "/x", b"")
        engine.let(1 + (PIECES if kind == "unary" else 0))
        await until(lambda: client.whole)
        assert (client.status, client.data) == (200, b"")
        await until(lambda: engine.released == 1)


@pytest.mark.parametrize("transport", NETWORK)
@pytest.mark.parametrize(
    ("path", "error"), [("/x", {"code": "payload_too_large"}), ("/v1/messages", {"type": "request_too_large"})]
)
async def test_a_body_beyond_the_limit_never_reaches_the_handler(
    transport: str, path: str, error: dict[str, str]
) -> None:
    async with connected(transport, "unary") as (engine, client):
        await client.ask("POST", path, b"x" * (LIMIT + 1))
        await until(lambda: client.whole)
        assert client.status == 413
        found = json.loads(client.data)
        assert ("type" in found) == (path == "/v1/messages"), "it has the error form of its path"
        assert error.items() <= found["error"].items()
        assert engine.asked == 0


@pytest.mark.parametrize("transport", NETWORK)
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(Unavailable("later"), 529, "overloaded_error"), (OSError("no disk"), 500, "api_error")],
)
async def test_a_handler_that_fails_gets_the_error_form_of_its_path(
    transport: str, error: Exception, status: int, kind: str
) -> None:
    async def handle(request: Request) -> Response:
        raise error

    client: TransportClient = ALL[transport](handle)
    await client.ask("POST", "/v1/messages", b"{}")
    await until(lambda: client.whole)
    answer = json.loads(client.data)
    assert (client.status, answer["type"], answer["error"]["type"]) == (status, "error", kind)
    await client.stop()


@pytest.mark.parametrize("transport", NETWORK)
async def test_a_body_of_just_the_limit_reaches_the_handler(transport: str) -> None:
    bodies: list[bytes] = []

    async def handle(request: Request) -> Response:
        bodies.append(request.body)
        return Response(200)

    client: TransportClient = NETWORK[transport](handle)
    await client.ask("POST", "/x", b"x" * LIMIT)
    await until(lambda: client.status == 200)
    assert bodies == [b"x" * LIMIT]
    await client.stop()


class Broken(Iterated):
    """A body that fails after some pieces."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.released = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.pieces):
            yield b"x"
        raise OSError("/secret")

    async def aclose(self) -> None:
        self.released += 1


@pytest.mark.parametrize("transport", NETWORK)
@pytest.mark.parametrize("pieces", [None, 0, 1, 3])
async def test_bugs_are_a_500_or_a_body_that_visibly_ends_too_soon(
    transport: str, pieces: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """If `pieces` is None, the handler itself fails."""
    broken = Broken(pieces or 0)

    async def handle(request: Request) -> Response:
        if pieces is None:
            raise RecursionError("/secret")
        return Response(200, [], broken)

    client: TransportClient = NETWORK[transport](handle)
    await client.ask("POST", "/x", b"{}")
    if pieces:
        await until(lambda: broken.released == 1 and client.data == b"x" * pieces)
        await client.stop()
        assert not client.whole
    else:
        await until(lambda: client.whole)
        assert client.status == 500
        assert json.loads(client.data)["error"]["type"] == "server_error"
        assert b"secret" not in client.data
        await client.stop()
    assert broken.released == (0 if pieces is None else 1)
    assert "secret" in caplog.text


async def test_asgi_send_alone_shows_that_the_client_left() -> None:
    engine = Engine()
    client = AsgiDeaf(engine.stream)
    await client.ask("POST", "/x", b"{}")
    engine.let(2)
    await until(lambda: client.data != b"")
    await client.leave()
    engine.let(1)
    await until(lambda: engine.released == 1)
    await client.call
    await client.stop()


# --- what only ASGI has


async def call_asgi(app: Asgi, scope: dict[str, Any], *incoming: dict[str, Any]) -> list[Any]:
    """Returns the messages that the app sends for these incoming ones; afterwards receive waits forever."""
    messages, sent = list(incoming), []

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"method": "GET", "path": "/", "headers": [], **scope}, receive, send)
    return sent


async def test_asgi_lifespan() -> None:
    sent = await call_asgi(
        Asgi(Engine().refuse, LIMIT), {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}
    )
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_asgi_closes_web_sockets_and_refuses_unknown_scopes() -> None:
    app = Asgi(Engine().refuse, LIMIT)
    assert await call_asgi(app, {"type": "websocket"}, {"type": "websocket.connect"}) == [
        {"type": "websocket.close", "code": 1000}
    ]
    with pytest.raises(ValueError, match="unknown ASGI scope"):
        await call_asgi(app, {"type": "carrier pigeon"})


async def test_asgi_request_and_response_in_our_words() -> None:
    seen: list[Request] = []

    async def handle(request: Request) -> Response:
        seen.append(request)
        headers = [("Content-Type", "text/plain"), ("Content-Length", "7"), ("Connection", "close"), ("X", "é日")]
        return Response(201, headers, b"ok", close=True)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mount/v1/é",
        "root_path": "/mount",
        "query_string": b"a=%20",
        "headers": [(b"Accept", b"a"), (b"accept", b"b"), (b"x", b"\xe9")],
        "client": ("::1", 80),
    }
    sent = await call_asgi(
        Asgi(handle, LIMIT), scope, {"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.request"}
    )
    assert seen == [Request("POST", "/v1/é", "a=%20", {"accept": "a, b", "x": "é"}, b"a", "[::1]:80")]
    start, body = sent
    assert start["status"] == 201
    assert start["headers"] == [
        (b"content-type", b"text/plain"),
        (b"x", b"\xe9?"),
        (b"content-length", b"2"),
        (b"connection", b"close"),
    ]
    assert body == {"type": "http.response.body", "body": b"ok"}


async def test_asgi_large_form_is_in_a_file_until_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "SPOOLED_FROM", 5)
    seen: list[tuple[bytes, bytes]] = []
    kept: list[Request] = []

    async def handle(request: Request) -> Response:
        assert request.spool is not None
        seen.append((request.body, request.spool.read(0, 100)))
        kept.append(request)
        return Response(200)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"content-type", b"multipart/form-data; boundary=b")],
    }
    pieces = [{"type": "http.request", "body": one, "more_body": one != b"gh"} for one in (b"abc", b"def", b"gh")]
    sent = await call_asgi(Asgi(handle, LIMIT), scope, *pieces)
    assert sent[0]["status"] == 200
    assert seen == [(b"", b"abcdefgh")]
    assert kept[0].spool is not None
    assert kept[0].spool.fileno() < 0


async def test_asgi_declared_length_is_refused_before_the_body_is_read() -> None:
    scope = {"type": "http", "headers": [(b"content-length", b"%d" % (LIMIT + 1))]}
    sent = await call_asgi(Asgi(Engine().unary, LIMIT), scope)
    assert sent[0]["status"] == 413


async def test_asgi_refusal_can_be_read_by_a_page() -> None:
    app = App(Config(fake_engine=True, max_body_bytes=1024, access_log=False))
    for path, kind in (("/v1/chat/completions", None), ("/v1/messages", "error")):
        scope = {"type": "http", "path": path, "headers": [(b"content-length", b"1025")]}
        start, body = await call_asgi(asgi(app), scope)
        assert start["status"] == 413
        assert (b"access-control-allow-origin", b"*") in start["headers"]
        assert json.loads(body["body"]).get("type") == kind


async def test_asgi_head_that_is_refused_costs_no_body() -> None:
    scope = {"type": "http", "path": "/x", "headers": [(b"content-length", b"5"), (b"origin", b"http://evil.example")]}
    sent = await call_asgi(Asgi(Engine().unary, LIMIT, refuse_pages), scope)
    assert sent[0]["status"] == 403


def refuse_pages(request: Request) -> None:
    assert (request.path, request.body) == ("/x", b"")
    if "origin" in request.headers:
        raise Forbidden("not from a page")


async def test_asgi_client_that_leaves_during_its_body_is_not_answered() -> None:
    incoming = {"type": "http.request", "body": b"a", "more_body": True}
    sent = await call_asgi(Asgi(Engine().unary, LIMIT), {"type": "http"}, incoming, {"type": "http.disconnect"})
    assert sent == []


async def test_asgi_headers_cannot_be_injected() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, [("X", "a\r\nY: b")], b"ok")

    sent = await call_asgi(Asgi(handle, LIMIT), {"type": "http"}, {"type": "http.request"})
    assert sent[0]["status"] == 500
