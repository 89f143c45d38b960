"""The state that all connections of a server share: the handler, the limits, and whose turn it is to be parsed.

There is a limit for all connections, one for those of each client, and a reserve for health checks. At a limit, the
connection that has been idle longest is closed (nginx does the same). If none is idle, the new connection is in the
reserve: it serves only a request that reports on the server itself, and answers any other with a 503.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...config import Config
from ...errors import Unavailable
from ...types import Handle, Request
from ...util.concurrency import share
from .request_parser import RequestHead

MIN_SURPLUS, MAX_SURPLUS = 8, 64
"""The most connections in the reserve: as many as --max_connections, within these bounds, since a low limit of open
files lowers that option. For a further one, the oldest of them is dropped."""

IDLE_GRACE_S = 1.0
"""Seconds for which an idle connection is kept: a new one's request may still be in the kernel's buffer."""


class Limited(Protocol):
    """The interface of a connection for the limits."""

    client: str

    @property
    def idle_since(self) -> float | None:
        """The loop time since when the peer could have begun a request; None if it has, or the connection is ending."""

    def drain(self) -> None:
        """Closes the connection if it is idle."""

    def abort(self) -> None:
        """Drops the connection."""

    def cancel(self) -> None:
        """Cancels the running request, and closes the connection."""

    def restrict(self) -> None:
        """Restricts the connection to a single request, which must pass `check_head` and arrive soon."""


class ConnectionLimits:
    """Enforces the limits on the connections of one server."""

    def __init__(self, config: Config, is_vital: Callable[[str, str], bool]) -> None:
        """Reads the limits from the options; `is_vital` returns whether a method and path are served beyond them."""
        self._max = config.max_connections
        self._max_per_client = config.max_connections_per_client or self._max - self._max // 4
        self._max_surplus = min(max(self._max, MIN_SURPLUS), MAX_SURPLUS)
        self._is_vital = is_vital
        self._counted: set[Limited] = set()  # without those that close to make room
        self._clients: dict[str, int] = {}
        self._idle: dict[Limited, None] = {}  # the longest idle first; some are not idle any more
        self._surplus: dict[Limited, None] = {}  # by the time of arrival

    def opened(self, connection: Limited) -> None:
        """Counts a new connection, and makes room for it."""
        client = connection.client
        count = self._clients[client] = self._clients.get(client, 0) + 1
        self._counted.add(connection)
        if client and count > self._max_per_client:
            fits = self._close_idle(connection, client)
        else:
            fits = len(self._counted) - len(self._surplus) <= self._max or self._close_idle(connection)
        if fits:
            self._idle[connection] = None
            return
        self._surplus[connection] = None
        connection.restrict()
        if len(self._surplus) > self._max_surplus:
            next(iter(self._surplus)).abort()

    def closed(self, connection: Limited) -> None:
        """Stops counting a connection, if it still counts."""
        if connection not in self._counted:
            return
        self._counted.remove(connection)
        self._idle.pop(connection, None)
        self._surplus.pop(connection, None)
        self._clients[connection.client] -= 1
        if not self._clients[connection.client]:
            del self._clients[connection.client]

    def idle(self, connection: Limited) -> None:
        """Notes that a connection is between two requests."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def check_head(self, head: RequestHead) -> None:
        """Raises Unavailable for a request that is not served beyond the limits."""
        if not self._is_vital(head.method, head.path):
            raise too_many_connections()

    def _close_idle(self, newcomer: Limited, client: str = "") -> bool:
        """Closes the connection that is idle longest, of one client or any; returns False if none is for long."""
        latest = (newcomer.idle_since or 0.0) - IDLE_GRACE_S
        busy: list[Limited] = []
        found = None
        for connection in self._idle:
            since = connection.idle_since
            if since is None:
                busy.append(connection)
            elif since > latest:
                break
            elif not client or connection.client == client:
                found = connection
                break
        for connection in busy:
            del self._idle[connection]
        if found is None:
            return False
        self.closed(found)
        found.drain()
        return True


def too_many_connections() -> Unavailable:
    """Returns the error for a connection beyond the limits."""
    return Unavailable("the server has too many open connections", code="too_many_connections")


def client_of(peer: object) -> str:
    """Returns the client of a peer's address: an IPv4 address, the /64 of an IPv6 one; "" for a Unix socket."""
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))


MAX_PENDING_BODIES = 4
"""The memory of all incomplete bodies, in largest allowed ones; without it, clients could use 64 GiB. One client may
use three quarters of it."""


@dataclass(eq=False, repr=False)
class ServerState:
    """The state that the connections of one server share.

    While `draining` is set, every response closes its connection. `active_requests` counts the requests whose response
    is not closed, even if their connection is. `reserved_bytes` is the memory of incomplete bodies.
    """

    config: Config
    """The options of the server."""
    handle: Handle
    """Answers requests."""
    is_vital: Callable[[str, str], bool] = lambda method, path: False
    """Returns whether a request with this method and path is served beyond --max_connections."""
    check_head: Callable[[Request], None] = lambda request: None
    """Raises RequestError for a request whose body should not be read."""

    def __post_init__(self) -> None:
        self.limits = ConnectionLimits(self.config, self.is_vital)
        self.connections: set[Limited] = set()
        self.draining = False
        self.active_requests = 0
        self.reserved_bytes = 0
        self._reserved_by_client: dict[str, int] = {}
        self.most_reserved_bytes = MAX_PENDING_BODIES * self.config.max_body_bytes
        self._unparsed: deque[Callable[[], None]] = deque()  # of connections with tiny chunks, in turn
        self._idle: asyncio.Event | None = None  # while draining: set when nothing is open

    def connection_opened(self, connection: Limited) -> None:
        """Adds a connection within the limits, or drops it while draining."""
        self.connections.add(connection)
        if self.draining:
            connection.abort()
        else:
            self.limits.opened(connection)

    def connection_closed(self, connection: Limited) -> None:
        """Removes a connection."""
        self.connections.discard(connection)
        self.limits.closed(connection)
        self._check_idle()

    def request_finished(self) -> None:
        """Notes that a response is closed."""
        self.active_requests -= 1
        self._check_idle()

    def _check_idle(self) -> None:
        if self._idle is not None and not self.connections and not self.active_requests:
            self._idle.set()

    def parse_later(self, loop: asyncio.AbstractEventLoop, parse: Callable[[], None]) -> None:
        """Calls `parse` in a later iteration of the event loop, which 24 bodies of tiny chunks would block for 3 s."""
        self._unparsed.append(parse)
        if len(self._unparsed) == 1:
            loop.call_soon(self._parse_next, loop)

    def _parse_next(self, loop: asyncio.AbstractEventLoop) -> None:
        parse = self._unparsed[0]
        try:
            parse()
        finally:
            self._unparsed.popleft()
            if self._unparsed:
                loop.call_soon(self._parse_next, loop)

    def reserve_memory(self, delta: int, client: str = "") -> bool:
        """Adds to the memory of all incomplete bodies, in bytes. Returns False if all or a client's are too many."""
        self.reserved_bytes += delta
        of_client = self._reserved_by_client[client] = self._reserved_by_client.get(client, 0) + delta
        if not of_client:
            del self._reserved_by_client[client]
        most = self.most_reserved_bytes
        return self.reserved_bytes <= most and (not client or of_client <= share(most))
