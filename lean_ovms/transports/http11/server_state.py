"""What the connections of one server share: its handler, limits on all of them, and whose turn it is to be parsed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...config import Config
from ...types import Handle, Request
from .connection_limits import ConnectionLimits, Limited

MAX_PENDING_BODIES = 4
"""Memory for all bodies that are not complete yet, in bodies of the largest size: without it, max_connections clients
could hold 64 GiB."""


@dataclass(eq=False, repr=False)
class ServerState:
    """is_vital: whether a request (method, path) reports on the server, and is served beyond --max_connections.
    check_head: raises RequestError for a request without its body, which then is not read.

    draining: every response closes its connection. active_requests: whose response is not closed; their connections
    may have closed before. reserved_bytes: of unfinished bodies.
    """

    config: Config
    handle: Handle
    is_vital: Callable[[str, str], bool] = lambda method, path: False
    check_head: Callable[[Request], None] = lambda request: None

    def __post_init__(self) -> None:
        self.limits = ConnectionLimits(self.config, self.is_vital)
        self.connections: set[Limited] = set()
        self.draining = False
        self.active_requests = 0
        self.reserved_bytes = 0
        self.most_reserved_bytes = MAX_PENDING_BODIES * self.config.max_body_bytes
        self._unparsed: deque[Callable[[], None]] = deque()  # of connections with tiny chunks, in turn
        self._idle: asyncio.Event | None = None  # while draining: set when nothing is open

    def connection_opened(self, connection: Limited) -> None:
        """Adds a connection, within the limits; drops it while draining."""
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
        """Calls it in a later turn of the loop. One in each turn: 24 bodies of tiny chunks held the loop for 3 s."""
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

    def reserve_memory(self, delta: int) -> bool:
        """Adds to the memory of all unfinished bodies, in bytes; returns False when it exceeds the limit."""
        self.reserved_bytes += delta
        return self.reserved_bytes <= self.most_reserved_bytes
