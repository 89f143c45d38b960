"""Does the work of every request, whatever its route: its client, what its page may do, CORS headers, its record.

Each is one object that App asks in turn. Knows no routes by name, no models and no sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from ..config import Config
from ..errors import CLIENT_LEFT, Forbidden, StartError, install_command
from ..manifest import ObserverRow, Route, named
from ..observability.logging import Access, safe
from ..observability.records import Metrics, RequestRecord, current_record
from ..types import ByteStream, Request, Response, Switch
from ..types.push import Sink
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
        """Returns the headers of every response."""
        origin = request.headers.get("origin", "")
        if not origin or not self._config.allows_origin(origin):
            return self._default
        return self._config.cors_headers(origin)

    def preflight(self, request: Request) -> Response:
        """Returns the response to OPTIONS on any path, like that of OVMS, without `headers`.

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
    """Gets the record of each request when it has finished; the span of a trace is made so."""

    def add(self, record: RequestRecord) -> None:
        """Observes a request that has just finished; called in the event loop."""

    def close(self) -> None:
        """Sends what waits to be sent; called in a thread. Idempotent."""


class RequestRecords:
    """A record for each request, from which the access line, the metrics and the span are made when its response is
    closed."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        """Makes the records, and the observers that options ask for. Raises StartError."""
        self._access_log = config.access_log
        self._metrics = metrics
        rows = [row for row in config.composition.observers if config.any_set(row.options)]
        self._observers = [_observer(row, config) for row in rows]
        self._enabled = config.access_log or metrics.enabled or bool(self._observers)
        self._open: set[RequestRecord] = set()

    def start(self, request: Request) -> RequestRecord:
        """Returns the record of a request that has just arrived; `finish` or `observe` it."""
        record = RequestRecord(_request_id(request), request.method, request.path, request.peer, time.monotonic())
        traceparent = request.headers.get("traceparent", "")
        if traceparent and TRACEPARENT.fullmatch(traceparent):
            record.traceparent, record.tracestate = traceparent, request.headers.get("tracestate", "")
        if self._enabled:
            self._open.add(record)
        return record

    def observe(self, request: Request, response: Response, record: RequestRecord) -> Response:
        """Returns the response with an end that finishes the record and gives back what the request has taken; the same
        one where nothing is recorded or taken.
        """
        if isinstance(response, Switch):
            return self._observe_switch(response, record)
        if not (self._enabled or record.releases):
            return response
        return _ObservedResponse(response, record, self._closed, has_body=request.method != "HEAD")

    def _observe_switch(self, response: Switch, record: RequestRecord) -> Switch:
        """Returns the same response; bytes and messages that are sent over its connection count as those of the
        request."""

        def sent(size: int) -> None:
            record.bytes += size
            record.chunks += 1

        def closed() -> None:
            record.status = response.status
            self._closed(record)

        record.stream = True
        response.on_open.append(partial(current_record.set, record))  # of the task that serves the connection
        response.on_send.append(sent)
        response.on_close.append(closed)
        return response

    def _closed(self, record: RequestRecord) -> None:
        """Is called when the transport has closed the response."""
        try:
            if self._enabled:
                self.finish(record)
        finally:
            release_all(record)

    def cancelled(self, record: RequestRecord) -> None:
        """Records that there will be no response: the client has disconnected."""
        record.status = CLIENT_LEFT
        if self._enabled:
            self.finish(record)

    def finish(self, record: RequestRecord) -> None:
        """Ends the record of a request whose response the transport has closed."""
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
        """Returns how many requests for a model are not finished."""
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


def release_all(record: RequestRecord) -> None:
    """Gives back everything that a request has taken. Idempotent."""
    while record.releases:
        record.releases.pop()()


class _ObservedResponse(Response):
    """A response that finishes its record when the transport closes it, so that a stream is measured to its end."""

    __slots__ = ("_on_close", "_record")

    def __init__(
        self, response: Response, record: RequestRecord, on_close: Callable[[RequestRecord], None], *, has_body: bool
    ) -> None:
        """Wraps a response, which counts in its record from now on.

        Args:
            response: The response of the application.
            record: The record of the request, which gets the status, and the bytes and chunks of the body.
            on_close: Is called with the record when the transport closes the response.
            has_body: Whether the client gets the body.
        """
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
    """Returns the client's X-Request-Id if it is harmless in a header and a log line, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if given and is_safe_id(given) else os.urandom(16).hex()


UNREGISTRABLE = (".localhost", ".local", ".internal")
"""Ends of names that nobody can register, as of a name without a dot: no page of the web can have one."""
_HOST = re.compile(r"(\[[0-9a-f:.]*\]|[^:\[\], ]*)(?::[0-9]*)?")
"""An address or a name, and perhaps a port."""
OTHER_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site for a page of another origin (https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header)."""


class OriginPolicy:
    """Decides whether a request may run, by the page that sent it and by the name under which it reached the server.

    CORS leaves to the browser what a page may read. The request has run by then, and some need no preflight: a POST
    without a Content-Type, a WebSocket, a GET of an image. And a page whose name was made to point to this server (DNS
    rebinding) is one of the server's own to the browser; only Host tells. So what a page may not do is refused here,
    before its body is read. Clients that are no browsers send no Origin. The rules: docs/security.md. It knows the
    options and who is a proxy, and of a route what it declares.
    """

    def __init__(self, config: Config, clients: Clients, *, with_key: bool) -> None:
        """Makes the rule of a server.

        Args:
            config: The options.
            clients: Tells who is a proxy.
            with_key: Whether requests need an API key.
        """
        self._config = config
        self._clients = clients
        self._without_key = not with_key
        self._every_origin = "*" in config.origins
        self._hosts = {*config.hosts, *machine_names()}
        self._checks_hosts = bool(config.hosts) or (self._without_key and not self._every_origin)

    def check(self, route: Route, request: Request) -> None:
        """Checks the host and the page that a request comes from. Raises Forbidden."""
        exposed = route.changes and self._without_key
        checks_host = exposed or (self._checks_hosts and not route.vital)
        checks_page = exposed or not self._every_origin
        if not (checks_host or checks_page):
            return
        forwarded = self._clients.forwarded_host(request)
        host = (forwarded or request.headers.get("host", "")).lower()
        if checks_host and not self._knows(host) and (self._config.hosts or not forwarded):
            message = f"{safe(host)} is not known as a name of this server: --allowed_hosts"
            raise Forbidden(message, code="host_not_allowed")
        if checks_page and self._is_foreign(route, request, host):
            page = safe(request.headers.get("origin", "other sites"))
            way = "--allowed_origins, or an API key" if self._every_origin else "--allowed_origins"
            raise Forbidden(f"pages of {page} may not do this on this server: {way}", code="origin_not_allowed")

    def _knows(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if "*" in self._hosts or found is None:
            return "*" in self._hosts
        name = found[1].removesuffix(".")
        known = "." not in name or name in self._hosts or name.endswith(UNREGISTRABLE)
        return known or address_in(name) is not None

    def _is_foreign(self, route: Route, request: Request, host: str) -> bool:
        """Returns whether the page that sent a request is neither the server's own nor of an allowed origin.

        A link from another site to the pages of the server is no such request.
        """
        origin = request.headers.get("origin", "")
        if not origin:
            return route.auth != "open" and request.headers.get("sec-fetch-site") in OTHER_SITES
        scheme, _, own = origin.partition("://")
        port = ":443" if scheme == "https" else ":80"
        return own != host.removesuffix(port) and not self._config.allows_origin(origin)


def machine_names() -> set[str]:
    """Returns the machine's name, and those that /etc/hosts has beside it; a DNS query could delay the start."""
    name = socket.gethostname().lower()
    names = {name}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path("/etc/hosts").read_text("utf-8").lower().splitlines():
            _, *found = line.partition("#")[0].split() or [""]
            names.update(found if name in found else [])
    return names


UNIX = "unix"
MAX_HOPS = 32
"""Addresses of X-Forwarded-For that are read, from its end."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Clients:
    """Names the client of each request, between which the engine's time is shared.

    That is the peer's address, or behind a trusted proxy the address that X-Forwarded-For has for it. IPv6 addresses
    count by their /64, of which one customer has them all. An API key of one client, not that of all clients, takes the
    place of the address.
    """

    def __init__(self, config: Config) -> None:
        """Reads --trusted_proxies. Raises StartError if these are no addresses."""
        names = [name.strip() for name in config.trusted_proxies.split(",") if name.strip()]
        self._all = "all" in names
        self._unix = self._all or UNIX in names
        self._networks = tuple(_network(name) for name in names if name not in ("all", UNIX))

    def identify(self, request: Request) -> str:
        """Returns the client's name; "" where the transport does not know the peer."""
        return _by_host(self.source(request))

    def source(self, request: Request) -> str:
        """Returns the peer as the transport names it, or the address, without a port, that a trusted proxy has for the
        client.

        For logs: of the header's text only an address gets into it.
        """
        peer = request.peer
        if not (self._unix or self._networks):
            return peer
        forwarded = request.headers.get("x-forwarded-for", "")
        if not forwarded or not self._trusted(peer):
            return peer
        for hop in reversed(forwarded.rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
            address = address_in(hop)
            if address is None:
                break
            peer = str(address)
            if not self._trusted(peer):
                break
        return peer

    def forwarded_host(self, request: Request) -> str:
        """Returns the host and port at which a trusted proxy was asked, of X-Forwarded-Host; "" if there is none.

        Not where all are trusted: then a page could send the header itself.
        """
        forwarded = request.headers.get("x-forwarded-host", "")
        if not forwarded or self._all or not self._trusted(request.peer):
            return ""
        return forwarded.rpartition(",")[2].strip()

    def _trusted(self, peer: str) -> bool:
        if self._all:
            return True
        address = address_in(peer)
        if address is None:
            return self._unix and peer == UNIX
        return any(address in network for network in self._networks)


def _network(name: str) -> Network:
    try:
        return ipaddress.ip_network(name, strict=False)
    except ValueError:
        raise StartError(f"--trusted_proxies: {name!r} is neither an address nor a network, unix or all") from None


@lru_cache(4096)
def _by_host(peer: str) -> str:
    """Returns the name of a client with this address, the port left out."""
    address = address_in(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address or peer)


@lru_cache(4096)
def address_in(peer: str) -> Address | None:
    """Returns the address in "host", "host:port" or "[host]:port"; None if there is none. IPv4 inside IPv6 is IPv4."""
    host = peer.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
