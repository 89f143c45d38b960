"""Which connections a server keeps: a limit on all, one on each client, and a reserve for health checks.

At a limit the connection that has been idle longest makes room (nginx does the same). Where none is idle, the newcomer
is in the reserve: only a request that reports on the server itself is served there, any other gets a 503. Knows
connections by what they do, and no sockets.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Protocol

from ...config import Config
from ...errors import Unavailable
from .request_parser import RequestHead

MAX_SURPLUS = 64
"""Connections beyond the limit that may send a request; for another, the oldest of them is dropped."""

IDLE_GRACE_S = 1.0
"""A connection that is idle for less than this is kept: the request of a new one may be in the kernel's buffer."""


class Limited(Protocol):
    """A connection, as the limits see it."""

    client: str

    @property
    def idle_since(self) -> float | None:
        """Since when, by the loop's clock, the peer could begin a request; None: it did, or the connection ends."""

    def drain(self) -> None:
        """Close if idle."""

    def abort(self) -> None:
        """Drops the connection."""

    def cancel(self) -> None:
        """Cancels the running request, and closes."""

    def restrict(self) -> None:
        """Serve a single request, which `check_head` accepts and which comes soon."""


class ConnectionLimits:
    """The limits of one server. is_vital: whether a request (method, path) is served beyond the limits."""

    def __init__(self, config: Config, is_vital: Callable[[str, str], bool]) -> None:
        self._max = config.max_connections
        self._max_per_client = config.max_connections_per_client or self._max - self._max // 4
        self._is_vital = is_vital
        self._counted: set[Limited] = set()  # without those that close to make room
        self._clients: dict[str, int] = {}
        self._idle: dict[Limited, None] = {}  # by the time since when; some are not idle any more
        self._surplus: dict[Limited, None] = {}  # by the time of arrival

    def opened(self, connection: Limited) -> None:
        """Count a connection, and make room for it."""
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
        if len(self._surplus) > MAX_SURPLUS:
            next(iter(self._surplus)).abort()

    def closed(self, connection: Limited) -> None:
        """Forget a connection, if it still counts."""
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
        """Close the longest idle connection, of this client if one is given. False if none is idle long enough."""
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
    return Unavailable("too many connections", code="too_many_connections")


def client_of(peer: object) -> str:
    """Returns whom a peer's address belongs to: an IPv4 address, the /64 of an IPv6 one; "" for Unix sockets."""
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))
