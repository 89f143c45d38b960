"""The HTTP/1.1 server: listening, limits over all connections, graceful shutdown. No signals: see server/run.py."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from itertools import product
from pathlib import Path

from ...config import Config
from ...errors import StartError
from ...types import Handle, Request
from .connection import HttpConnection
from .connection_limits import ConnectionLimits
from .request_parser import RequestHead
from .response_head import response_head
from .sockets import bind, bind_unix, close_all, remove_unix, url
from .tls import Certificate

BACKLOG = 1024
"""Connections queued by the kernel, which caps this at net.core.somaxconn (4096 on current Linux)."""

MAX_PENDING_BODIES = 4
"""Memory for all bodies that are not complete yet, in bodies of the largest size: without it, max_connections clients
could hold 64 GiB."""

CLOSING_S = 2.0
"""Seconds at the end of drain for cancelled requests to close their responses and for last bytes to be sent."""

log = logging.getLogger("lean_ovms.transports")


class Server:
    """Serves handle on the addresses of config. start once, perhaps after bind; drain any number of times.

    addresses: as URLs, with the real port. draining: every response closes its connection. active_requests: whose
    response is not closed.
    """

    def __init__(
        self,
        config: Config,
        handle: Handle,
        is_vital: Callable[[str, str], bool] = lambda method, path: False,
        check_head: Callable[[Request], None] = lambda request: None,
    ) -> None:
        """is_vital: whether a request (method, path) reports on the server, and is served beyond --max_connections.

        check_head: raises RequestError for a request without its body, which then is not read.
        """
        self.config = config
        self.handle = handle
        self.check_head = check_head
        self.addresses: list[str] = []
        self.draining = False
        self.active_requests = 0
        self._bound: list[socket.socket] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._reload_task: asyncio.Task[None] | None = None
        self._unix_inode: int | None = None
        self._connections: set[HttpConnection] = set()
        self._limits = ConnectionLimits(config, is_vital)
        self._reserved_bytes = 0
        self._unparsed: deque[Callable[[], None]] = deque()  # of connections with tiny chunks, in turn
        self._idle: asyncio.Event | None = None  # while draining: set when nothing is open

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def bind(self) -> None:
        """Take the addresses, without listening yet. Raises StartError when one of them cannot be had."""
        if self.config.unix_socket:
            sock, self._unix_inode = bind_unix(Path(self.config.unix_socket))
            self._bound = [sock]
            return
        ports = {"rest_port": self.config.rest_port} | (
            {"ollama_port": self.config.ollama_port} if self.config.ollama_port else {}
        )
        for (option, port), host in product(ports.items(), _hosts(self.config.rest_bind_address)):
            try:
                self._bound += await bind(host, port, option=option, reuse=self.config.reuse_port)
            except StartError:
                self._stop_listening()
                raise

    async def start(self) -> None:
        """Listen. Raises StartError when an address, a certificate or the Unix socket cannot be used."""
        _check_cors(self.config)
        certificate = Certificate(self.config) if self.config.ssl_certfile else None
        context = certificate.context if certificate else None
        if not self._bound:
            await self.bind()
        sockets, self._bound = self._bound, []
        try:
            for sock in sockets:
                self._listeners.append(await self._listen(sock, context))
                self.addresses.append(url(sock, context is not None))
        except OSError as error:
            close_all(sockets)
            self._stop_listening()
            raise StartError(f"cannot listen: {error.strerror or error}") from None
        if certificate:
            self._reload_task = asyncio.get_running_loop().create_task(certificate.watch())

    async def drain(self, timeout_s: float) -> None:
        """Stop listening, let running requests finish for timeout_s, then cancel them. Returns when all is closed."""
        self.draining = True
        self._idle = asyncio.Event()
        self._stop_listening()
        for connection in list(self._connections):
            connection.drain()
        if await self._idle_within(timeout_s):
            return
        if self.active_requests:
            log.warning("cancelling %d requests that did not finish in %g s", self.active_requests, timeout_s)
        for connection in list(self._connections):
            connection.cancel()
        if not await self._idle_within(CLOSING_S):
            for connection in list(self._connections):
                connection.abort()
            await self._idle_within(CLOSING_S)

    # --- the connections' calls

    def connection_opened(self, connection: HttpConnection) -> None:
        """Add a connection, within the limits; drop it while draining."""
        self._connections.add(connection)
        if self.draining:
            connection.abort()
        else:
            self._limits.opened(connection)

    def connection_closed(self, connection: HttpConnection) -> None:
        """Remove a connection."""
        self._connections.discard(connection)
        self._limits.closed(connection)
        self._check_idle()

    def connection_idle(self, connection: HttpConnection) -> None:
        """Notes that the connection may be closed to make room for another."""
        self._limits.idle(connection)

    def check_surplus_head(self, head: RequestHead) -> None:
        """Raises RequestError for a request that is not served beyond the limits."""
        self._limits.check_head(head)

    def parse_later(self, parse: Callable[[], None]) -> None:
        """Call it in a later turn of the loop. One in each turn: 24 bodies of tiny chunks held the loop for 3 s."""
        self._unparsed.append(parse)
        if len(self._unparsed) == 1:
            asyncio.get_running_loop().call_soon(self._parse_next)

    def _parse_next(self) -> None:
        parse = self._unparsed[0]
        try:
            parse()
        finally:
            self._unparsed.popleft()
            if self._unparsed:
                asyncio.get_running_loop().call_soon(self._parse_next)

    def reserve_memory(self, delta: int) -> bool:
        """Add to the memory of all unfinished bodies, in bytes; False when it exceeds the limit."""
        self._reserved_bytes += delta
        return self._reserved_bytes <= MAX_PENDING_BODIES * self.config.max_body_bytes

    def request_started(self) -> None:
        """Count a request."""
        self.active_requests += 1

    def request_finished(self) -> None:
        """Notes that the response is closed; its connection may have closed before."""
        self.active_requests -= 1
        self._check_idle()

    def _check_idle(self) -> None:
        if self._idle is not None and not self._connections and not self.active_requests:
            self._idle.set()

    async def _idle_within(self, timeout_s: float) -> bool:
        assert self._idle is not None
        self._check_idle()
        if not self._idle.is_set():
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except asyncio.TimeoutError:
                return False
        return True

    # --- listening

    async def _listen(self, sock: socket.socket, context: ssl.SSLContext | None) -> asyncio.AbstractServer:
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        return await create(
            lambda: HttpConnection(self, loop),
            sock=sock,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=self.config.header_timeout_s if context else None,
        )

    def _stop_listening(self) -> None:
        if self._reload_task is not None:
            self._reload_task.cancel()
        while self._listeners:
            self._listeners.pop().close()
        close_all(self._bound)
        if self._unix_inode is not None:
            remove_unix(Path(self.config.unix_socket), self._unix_inode)
            self._unix_inode = None


def _hosts(addresses: str) -> list[str]:
    """Returns the members of a comma-separated list; a superfluous comma must not mean "all addresses"."""
    hosts = [host.strip().strip("[]") for host in addresses.split(",")]
    return [host for host in hosts if host] or [""]


def _check_cors(config: Config) -> None:
    try:
        for origin in config.origins:
            response_head(200, config.cors_headers(origin), "")
    except ValueError:
        raise StartError("--allowed_origins, --allowed_methods or --allowed_headers is not a header value") from None
