"""The work that is the same for every request: naming its client, checking origins, CORS headers, and its record.

App calls one object for each. None of them knows a route by its name, a model or a socket.
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
        """Returns the CORS headers for any response to the request."""
        origin = request.headers.get("origin", "")
        if not origin or not self._config.allows_origin(origin):
            return self._default
        return self._config.cors_headers(origin)

    def preflight(self, request: Request) -> Response:
        """Returns the response to OPTIONS on any path, like that of OVMS, but without the headers that `headers` adds.

        "*" does not cover Authorization, which every request of a client with a key has, and covers nothing at all if
        credentials are allowed (https://fetch.spec.whatwg.org/#cors-preflight-fetch). So if everything is allowed, the
        response lists by name what the browser asks for.
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
    """Receives the record of each finished request, for instance to make a trace span of it."""

    def add(self, record: RequestRecord) -> None:
        """Observes a request that has just finished; called in the event loop."""

    def close(self) -> None:
        """Sends what is still buffered; called in a thread. Idempotent."""


class RequestRecords:
    """Keeps a record of each request, from which the access line, metrics and span are made when it is over."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        """Creates the observers that options ask for. Raises StartError."""
        self._access_log = config.access_log
        self._metrics = metrics
        rows = [row for row in config.composition.observers if config.any_set(row.options)]
        self._observers = [_observer(row, config) for row in rows]
        self._enabled = config.access_log or metrics.enabled or bool(self._observers)
        self._open: set[RequestRecord] = set()

    def start(self, request: Request) -> RequestRecord:
        """Returns the record of a request that has just arrived. The caller must pass it to `finish` or `observe`."""
        record = RequestRecord(_request_id(request), request.method, request.path, request.peer, time.monotonic())
        traceparent = request.headers.get("traceparent", "")
        if traceparent and TRACEPARENT.fullmatch(traceparent):
            record.traceparent, record.tracestate = traceparent, request.headers.get("tracestate", "")
        if self._enabled:
            self._open.add(record)
        return record

    def observe(self, request: Request, response: Response, record: RequestRecord) -> Response:
        """Returns the response, wrapped if its end must finish the record or release what the request holds."""
        if isinstance(response, Switch):
            return self._observe_switch(response, record)
        if not (self._enabled or record.releases):
            return response
        return _ObservedResponse(response, record, self._closed, has_body=request.method != "HEAD")

    def _observe_switch(self, response: Switch, record: RequestRecord) -> Switch:
        """Counts the bytes and messages sent over a switched connection in the record; returns the same response."""

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
        """Finishes a record; called when the transport has closed the response."""
        try:
            if self._enabled:
                self.finish(record)
        finally:
            release_all(record)

    def cancelled(self, record: RequestRecord) -> None:
        """Finishes the record of a request that gets no response, since the client has disconnected."""
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
        """Closes the observers. Idempotent."""
        for observer in self._observers:
            await asyncio.to_thread(observer.close)

    def in_flight(self, model: str) -> int:
        """Returns how many requests for a model are in progress."""
        return sum(record.model == model for record in self._open)


def _observer(row: ObserverRow, config: Config) -> RequestObserver:
    """Creates the observer that a feature declares. Raises StartError."""
    try:
        make = named(row.package, row.make)
    except ImportError:
        flag = next(name for name in row.options if config.value(name))
        raise StartError(f"--{flag} needs {install_command(row.extra)}") from None
    observer: RequestObserver = make(config)
    return observer


def release_all(record: RequestRecord) -> None:
    """Releases everything that a request holds, such as memory for its body. Idempotent."""
    while record.releases:
        record.releases.pop()()


class _ObservedResponse(Response):
    """A response that finishes its record when the transport closes it, so that a stream is measured to its end."""

    __slots__ = ("_on_close", "_record")

    def __init__(
        self, response: Response, record: RequestRecord, on_close: Callable[[RequestRecord], None], *, has_body: bool
    ) -> None:
        """Wraps a response.

        Args:
            response: The response of the application.
            record: The record of the request, which gets the status, and the bytes and chunks of the body.
            on_close: Called with the record when the transport closes the response.
            has_body: Whether the client gets the body.
        """
        body = response.body
        super().__init__(response.status, response.headers, body, response.close)
        self._record = record
        self._on_close = on_close
        record.status = response.status
        if isinstance(body, bytes):
            record.bytes, record.chunks = (len(body), 1) if has_body else (0, 0)
        elif has_body:
            record.status = CLIENT_LEFT  # until the last chunk is sent
            self.body = _CountedStream(body, record, response.status)

    async def aclose(self) -> None:
        try:
            await Response.aclose(self)
        finally:
            self._on_close(self._record)


class _CountedStream:
    """A ByteStream that counts the bytes and chunks pushed to the transport in the request's record."""

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
    """Returns the client's X-Request-Id if it is safe to use in a header and a log line, or else a new id."""
    given = request.headers.get("x-request-id", "")
    return given if given and is_safe_id(given) else os.urandom(16).hex()


UNREGISTRABLE = (".localhost", ".local", ".internal")
"""Top-level domains that nobody can register, so that no web page comes from them or from names without a dot."""
_HOST = re.compile(r"(\[[0-9a-f:.]*\]|[^:\[\], ]*)(?::[0-9]*)?")
"""Matches an address or a name, with an optional port."""
OTHER_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site for a page of another origin
(https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header)."""


class OriginPolicy:
    """Decides whether a request may run, by the web page that sent it and by the host name that it used.

    With CORS alone, the browser decides what a page may read, but by then the request has run, and some need no
    preflight: a POST without a Content-Type, a WebSocket, a GET of an image. Moreover, if an attacker points the name
    of a page to this server (DNS rebinding), the browser takes the page for one of the server's own, and only the Host
    header reveals it. So requests that a page may not send are refused here, before their bodies are read. Clients that
    are not browsers send no Origin. docs/security.md has the rules. The policy depends on the options, the trusted
    proxies and the route's declarations only.
    """

    def __init__(self, config: Config, clients: Clients, *, with_key: bool) -> None:
        """Reads the allowed hosts and origins from the options.

        Args:
            config: The options.
            clients: Knows which peers are trusted proxies.
            with_key: Whether requests need an API key.
        """
        self._config = config
        self._clients = clients
        self._without_key = not with_key
        self._every_origin = "*" in config.origins
        self._hosts = {*config.hosts, *machine_names()}
        self._checks_hosts = bool(config.hosts) or (self._without_key and not self._every_origin)

    def check(self, route: Route, request: Request) -> None:
        """Checks the Host header and the origin of a request. Raises Forbidden if either is not allowed."""
        exposed = route.changes and self._without_key
        checks_host = exposed or (self._checks_hosts and not route.vital)
        checks_page = exposed or not self._every_origin
        if not (checks_host or checks_page):
            return
        forwarded = self._clients.forwarded_host(request)
        host = (forwarded or request.headers.get("host", "")).lower()
        if checks_host and not self._knows(host) and (self._config.hosts or not forwarded):
            message = f"{safe(host)} is not a known name of this server; the operator can allow it with --allowed_hosts"
            raise Forbidden(message, code="host_not_allowed")
        if checks_page and self._is_foreign(route, request, host):
            page = safe(request.headers.get("origin", "other sites"))
            way = "--allowed_origins or set an API key" if self._every_origin else "--allowed_origins"
            raise Forbidden(
                f"web pages of {page} may not send this request to this server; the operator can allow them with {way}",
                code="origin_not_allowed",
            )

    def _knows(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if "*" in self._hosts or found is None:
            return "*" in self._hosts
        name = found[1].removesuffix(".")
        known = "." not in name or name in self._hosts or name.endswith(UNREGISTRABLE)
        return known or address_in(name) is not None

    def _is_foreign(self, route: Route, request: Request, host: str) -> bool:
        """Returns whether a page of an origin that is not allowed sends a request; links to open pages do not count."""
        origin = request.headers.get("origin", "")
        if not origin:
            return route.auth != "open" and request.headers.get("sec-fetch-site") in OTHER_SITES
        scheme, _, own = origin.partition("://")
        port = ":443" if scheme == "https" else ":80"
        return own != host.removesuffix(port) and not self._config.allows_origin(origin)


def machine_names() -> set[str]:
    """Returns the machine's host name and its aliases in /etc/hosts, without a query of DNS, which could take long."""
    name = socket.gethostname().lower()
    names = {name}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path("/etc/hosts").read_text("utf-8").lower().splitlines():
            _, *found = line.partition("#")[0].split() or [""]
            names.update(found if name in found else [])
    return names


UNIX = "unix"
MAX_HOPS = 32
"""The number of addresses in X-Forwarded-For that are read, from the end of the list."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Clients:
    """Names the client of each request. The engine's time is shared fairly between these names.

    The name is the peer's address or, behind a trusted proxy, the client's address in X-Forwarded-For. An IPv6 address
    counts as its /64 network, since one customer has a whole network. An API key that belongs to one client takes the
    place of the address.
    """

    def __init__(self, config: Config) -> None:
        """Reads --trusted_proxies. Raises StartError if an entry is not an address or a network."""
        names = [name.strip() for name in config.trusted_proxies.split(",") if name.strip()]
        self._all = "all" in names
        self._unix = self._all or UNIX in names
        self._networks = tuple(_network(name) for name in names if name not in ("all", UNIX))

    def identify(self, request: Request) -> str:
        """Returns the client's name; "" if the transport does not know the peer's address."""
        return _by_host(self.source(request))

    def source(self, request: Request) -> str:
        """Returns the client's address for logs, without port: the peer's or, from a trusted proxy, the forwarded one.

        Only a valid address is taken from the header's text.
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
        """Returns the host and port in X-Forwarded-Host if a trusted proxy sent it, else "".

        If every peer is trusted, the header is ignored, since a web page could send it.
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
        raise StartError(f"--trusted_proxies: {name!r} is not an IP address, a network, unix or all") from None


@lru_cache(4096)
def _by_host(peer: str) -> str:
    """Returns the name of a client with this address, without the port."""
    address = address_in(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address or peer)


MAX_ADDRESS = 100
"""The most characters of an address with a port. Longer texts, which a client can send as Host, stay out of the cache:
4096 of them would take 240 MB."""


def address_in(peer: str) -> Address | None:
    """Returns the address, IPv4 also from inside IPv6, in "host", "host:port" or "[host]:port"; or None."""
    return _address_in(peer) if len(peer) <= MAX_ADDRESS else None


@lru_cache(4096)
def _address_in(peer: str) -> Address | None:
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
