"""What holds for every request, whatever its route: CORS headers, the request's record.

Each is one object that App asks in turn. Knows no routes by name, no models and no sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Protocol

from ..config import Config
from ..errors import StartError, install_command
from ..manifest import ObserverRow, named
from ..observability.logging import Access
from ..observability.metrics import Metrics
from ..observability.records import CLIENT_LEFT, RequestRecord, current_record
from ..types import ByteStream, Request, Response
from ..types.push import Sink
from ..types.websocket import Close, Upgrade, WebSocket
from .response import is_safe_id

logger = logging.getLogger("lean_ovms.access")

PREFLIGHT_S = "600"
"""Seconds for which a browser may cache a preflight (Starlette's default; browsers' own is 5)."""
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_NAMES = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+(?:, *[-!#$%&'*+.^_`|~0-9A-Za-z]+)*")


class Cors:
    """The headers that let pages of other origins use the API (https://fetch.spec.whatwg.org/#http-cors-protocol)."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._default = config.cors_headers()

    def headers(self, request: Request) -> list[tuple[str, str]]:
        """Headers of every response."""
        origin = request.headers.get("origin", "")
        if not origin or not self._config.allows_origin(origin):
            return self._default
        return self._config.cors_headers(origin)

    def preflight(self, request: Request) -> Response:
        """The response to OPTIONS, on any path as in OVMS, without `headers`.

        "*" does not cover Authorization, which every request of a client with a key has; nor anything at all where
        credentials are allowed (https://fetch.spec.whatwg.org/#cors-preflight-fetch). So where everything is allowed,
        what the browser asks for is allowed by its name.
        """
        headers = [("Access-Control-Max-Age", PREFLIGHT_S)]
        for asked_in, answered_in, allowed in (
            ("access-control-request-headers", "Access-Control-Allow-Headers", self._config.allowed_headers),
            ("access-control-request-method", "Access-Control-Allow-Methods", self._config.allowed_methods),
        ):
            requested = request.headers.get(asked_in, "")
            if allowed == "*" and _NAMES.fullmatch(requested):
                headers.append((answered_in, requested))
        return Response(200, headers)


class RequestObserver(Protocol):
    """What gets the record of each request when it has finished: the span of a trace is made so."""

    def add(self, record: RequestRecord) -> None:
        """Observes a request that has just finished; called in the event loop."""

    def close(self) -> None:
        """Sends what waits to be sent; called in a thread. Idempotent."""


class RequestRecords:
    """A record for each request, from which the access line, the metrics and the span are made when its response is
    closed."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        """Raises StartError."""
        self._access_log = config.access_log
        self._metrics = metrics
        rows = [row for row in config.composition.observers if config.any_set(row.options)]
        self._observers = [_observer(row, config) for row in rows]
        self._enabled = config.access_log or metrics.enabled or bool(self._observers)
        self._open: set[RequestRecord] = set()

    def start(self, request: Request) -> RequestRecord:
        """The record of a request that has just arrived; `finish` or `observe` it."""
        record = RequestRecord(_request_id(request), request.method, request.path, request.peer, time.monotonic())
        traceparent = request.headers.get("traceparent", "")
        if traceparent and TRACEPARENT.fullmatch(traceparent):
            record.traceparent, record.tracestate = traceparent, request.headers.get("tracestate", "")
        if self._enabled:
            self._open.add(record)
        return record

    def observe(self, request: Request, response: Response, record: RequestRecord) -> Response:
        """The response with an end that finishes the record and gives back what the request has taken; the same one
        where nothing is recorded or taken."""
        if isinstance(response, Upgrade):
            return self._observe_websocket(response, record)
        if not (self._enabled or record.releases):
            return response
        return _ObservedResponse(response, record, self._closed, has_body=request.method != "HEAD")

    def _observe_websocket(self, response: Upgrade, record: RequestRecord) -> Upgrade:
        """The same response; bytes and messages that its WebSocket sends count as those of the request."""

        def closed() -> None:
            record.status = response.status
            self._closed(record)

        async def recorded(websocket: WebSocket) -> Close:
            current_record.set(record)  # of this task, which is the WebSocket's own
            return await serve(_CountedWebSocket(websocket, record))

        record.stream = True
        serve, response.serve = response.serve, recorded
        response.on_close.append(closed)
        return response

    def _closed(self, record: RequestRecord) -> None:
        """Called when the transport has closed the response."""
        try:
            if self._enabled:
                self.finish(record)
        finally:
            release_all(record)

    def cancelled(self, record: RequestRecord) -> None:
        """There will be no response: the client has disconnected."""
        record.status = CLIENT_LEFT
        if self._enabled:
            self.finish(record)

    def finish(self, record: RequestRecord) -> None:
        """The transport has closed the response."""
        self._open.discard(record)
        record.seconds = time.monotonic() - record.started
        for observer in self._observers:
            observer.add(record)
        if self._access_log:
            Access(record).log(logger, logging.DEBUG if record.quiet else logging.INFO)
        self._metrics.request_finished(record)

    async def close(self) -> None:
        """Ends the observers. Idempotent."""
        for observer in self._observers:
            await asyncio.to_thread(observer.close)

    def in_flight(self, model: str) -> int:
        """Requests for a model that are not finished."""
        return sum(record.model == model for record in self._open)


def _observer(row: ObserverRow, config: Config) -> RequestObserver:
    """Returns the observer of a feature. Raises StartError."""
    try:
        make = named(row.package, row.make)
    except ImportError:
        flag = next(name for name in row.options if config.value(name))
        raise StartError(f"--{flag} needs {install_command(row.extra)}") from None
    observer: RequestObserver = make(config)
    return observer


class _CountedWebSocket:
    """A WebSocket that counts in the record what is sent."""

    def __init__(self, websocket: WebSocket, record: RequestRecord) -> None:
        self.receive = websocket.receive
        self._send = websocket.send
        self._record = record

    async def send(self, *text: bytes) -> None:
        self._record.bytes += sum(map(len, text))
        self._record.chunks += 1
        await self._send(*text)


def release_all(record: RequestRecord) -> None:
    """Give back everything that a request has taken. Idempotent."""
    while record.releases:
        record.releases.pop()()


class _ObservedResponse(Response):
    """A response that finishes its record when the transport closes it, so that a stream is measured to its end."""

    __slots__ = ("_on_close", "_record")

    def __init__(
        self, response: Response, record: RequestRecord, on_close: Callable[[RequestRecord], None], *, has_body: bool
    ) -> None:
        """has_body: the client gets the body."""
        body = response.body
        super().__init__(response.status, response.headers, body, response.close)
        self._record = record
        self._on_close = on_close
        record.status = response.status
        if isinstance(body, bytes):
            record.bytes, record.chunks = len(body), 1
        elif has_body:
            record.status = CLIENT_LEFT  # until the last chunk is sent
            self.body = _CountedStream(body, record, response.status)

    async def aclose(self) -> None:
        try:
            await Response.aclose(self)
        finally:
            self._on_close(self._record)


class _CountedStream:
    """A ByteStream that counts in the record what is pushed to the transport."""

    __slots__ = ("_body", "_record", "_status")

    def __init__(self, body: ByteStream, record: RequestRecord, status: int) -> None:
        self._body = body
        self._record = record
        self._status = status

    async def push_to(self, sink: Sink[bytes]) -> None:
        record, push = self._record, sink.push

        def counted(data: bytes) -> None:
            record.bytes += len(data)
            record.chunks += 1
            push(data)

        await self._body.push_to(Sink(counted, sink.paused))
        record.status = self._status

    async def aclose(self) -> None:
        await self._body.aclose()


def _request_id(request: Request) -> str:
    """The client's X-Request-Id if it is harmless in a header and a log line, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if given and is_safe_id(given) else os.urandom(16).hex()
