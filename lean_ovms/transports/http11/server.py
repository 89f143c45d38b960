"""Listening, the limits that all connections share, and the graceful end. Signals and exit belong to serve.py."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

from ...config import Config
from ...errors import StartError, Unavailable
from ...types import Handle
from .connection import Connection
from .response_head import response_head
from .sockets import bind, bind_unix, close_all, remove_unix, url
from .tls import Certificate

BACKLOG = 1024
"""Connections that the kernel holds for us; it caps this at net.core.somaxconn (4096 on current Linux)."""

MAX_SURPLUS = 64
"""Connections beyond the limit that may read their 503 at the same time; the rest are dropped without one."""

MAX_BODIES = 4
"""Memory for all bodies that are still coming in, in bodies of the largest size: the limit of one body alone would let
max_connections clients hold 64 GiB."""

CLOSING_S = 2.0
"""At the end of drain: time for cancelled exchanges to release what they hold and for last bytes to leave."""

log = logging.getLogger("lean_ovms.wire")


class Server:
    """Serves handle on the addresses of config. start once; drain as often as you like.

    addresses: as URLs, with the real port. draining: answers say that their connection closes.
    """

    def __init__(self, config: Config, handle: Handle) -> None:
        self.config = config
        self.handle = handle
        self.addresses: list[str] = []
        self.draining = False
        self.open_exchanges = 0
        self._listeners: list[asyncio.AbstractServer] = []
        self._renewal: asyncio.Task[None] | None = None
        self._unix_inode: int | None = None
        self._connections: set[Connection] = set()
        self._held_bytes = 0
        self._quiet: asyncio.Event | None = None  # while draining: nothing is open any more

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen. Raises StartError when an address, a certificate or the Unix socket cannot be used."""
        _check_cors(self.config)
        certificate = Certificate(self.config) if self.config.ssl_certfile else None
        context = certificate.context if certificate else None
        sockets = await self._bind()
        try:
            for sock in sockets:
                self._listeners.append(await self._listen(sock, context))
                self.addresses.append(url(sock, context is not None))
        except OSError as error:
            close_all(sockets)
            self._stop_listening()
            raise StartError(f"cannot listen: {error.strerror or error}") from None
        if certificate:
            self._renewal = asyncio.get_running_loop().create_task(certificate.follow())

    async def drain(self, timeout_s: float) -> None:
        """Stop listening, let running exchanges finish for timeout_s, then cancel them. Returns when all is closed."""
        self.draining = True
        self._quiet = asyncio.Event()
        self._stop_listening()
        for connection in list(self._connections):
            connection.drain()
        if await self._quiet_within(timeout_s):
            return
        if self.open_exchanges:
            log.warning("cancelling %d exchanges that did not end in %g s", self.open_exchanges, timeout_s)
        for connection in list(self._connections):
            connection.give_up()
        if not await self._quiet_within(CLOSING_S):
            for connection in list(self._connections):
                connection.abort()
            await self._quiet_within(CLOSING_S)

    # --- the connections' calls

    def opened(self, connection: Connection) -> None:
        """Count a connection; refuse it when it is one too many, or too late."""
        self._connections.add(connection)
        surplus = len(self._connections) - self.config.max_connections
        if surplus > MAX_SURPLUS or self.draining:
            connection.abort()
        elif surplus > 0:
            connection.refuse(Unavailable("too many connections", code="too_many_connections"))

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self._look_if_quiet()

    def hold(self, delta: int) -> bool:
        """Count memory held for bodies that are still coming in; False when it is too much for all together."""
        self._held_bytes += delta
        return self._held_bytes <= MAX_BODIES * self.config.max_body_bytes

    def begun(self) -> None:
        """Count an exchange."""
        self.open_exchanges += 1

    def ended(self) -> None:
        """The exchange has released what it held; its connection may be gone before that."""
        self.open_exchanges -= 1
        self._look_if_quiet()

    def _look_if_quiet(self) -> None:
        if self._quiet is not None and not self._connections and not self.open_exchanges:
            self._quiet.set()

    async def _quiet_within(self, timeout_s: float) -> bool:
        assert self._quiet is not None
        self._look_if_quiet()
        if not self._quiet.is_set():
            try:
                await asyncio.wait_for(self._quiet.wait(), timeout_s)
            except asyncio.TimeoutError:
                return False
        return True

    # --- listening

    async def _bind(self) -> list[socket.socket]:
        if self.config.unix_socket:
            sock, self._unix_inode = bind_unix(Path(self.config.unix_socket))
            return [sock]
        sockets: list[socket.socket] = []
        try:
            for host in _hosts(self.config.rest_bind_address):
                sockets += await bind(host, self.config.rest_port)
        except StartError:
            close_all(sockets)
            raise
        return sockets

    async def _listen(self, sock: socket.socket, context: ssl.SSLContext | None) -> asyncio.AbstractServer:
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        return await create(
            lambda: Connection(self, loop),
            sock=sock,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=self.config.header_timeout_s if context else None,
        )

    def _stop_listening(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        while self._listeners:
            self._listeners.pop().close()
        if self._unix_inode is not None:
            remove_unix(Path(self.config.unix_socket), self._unix_inode)
            self._unix_inode = None


def _hosts(addresses: str) -> list[str]:
    """The members of a comma list; a comma too many must not come to mean "everywhere"."""
    hosts = [host.strip().strip("[]") for host in addresses.split(",")]
    return [host for host in hosts if host] or [""]


def _check_cors(config: Config) -> None:
    try:
        for origin in config.origins:
            response_head(200, config.cors_headers(origin), "")
    except ValueError:
        raise StartError("--allowed_origins, --allowed_methods or --allowed_headers is not a header value") from None
