"""Listening sockets, the connection limit and the graceful end. Signals and the process's exit belong to serve.py."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from pathlib import Path

from lean_ovms.config import Config
from lean_ovms.errors import StartError, Unavailable
from lean_ovms.shapes import Handle

from .connection import Connection

BACKLOG = 1024
"""Connections that the kernel holds for us; it caps this at net.core.somaxconn (4096 on current Linux)."""

MAX_SURPLUS = 64
"""Connections beyond the limit that may read their 503 at the same time; the rest are dropped without one."""

CLOSING_S = 2.0
"""At the end of drain: time for cancelled exchanges to release what they hold and for last bytes to leave."""

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

log = logging.getLogger("lean_ovms.wire")


class Server:
    """Serves handle on the addresses of config. start once, drain once.

    addresses: as URLs, with the real port.
    """

    def __init__(self, config: Config, handle: Handle) -> None:
        self.config = config
        self.handle = handle
        self.addresses: list[str] = []
        self.draining = False
        self.open_exchanges = 0
        self._listeners: list[asyncio.AbstractServer] = []
        self._connections: set[Connection] = set()
        self._unix_inode: int | None = None
        self._quiet: asyncio.Event | None = None

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen. Raises StartError when an address, a certificate or the Unix socket cannot be used."""
        context = _tls(self.config)
        sockets = [self._bind_unix()] if self.config.unix_socket else await self._bind_all()
        for sock in sockets:
            try:
                self._listeners.append(await self._listen(sock, context))
            except OSError as error:
                self._stop_listening()
                raise StartError(f"cannot listen on {_url(sock, False)}: {error.strerror or error}") from None
            self.addresses.append(_url(sock, context is not None))
            log.info("listening on %s", self.addresses[-1])

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
        """Count a connection; refuse it when it is one too many."""
        self._connections.add(connection)
        surplus = len(self._connections) - self.config.max_connections
        if surplus > MAX_SURPLUS:
            connection.abort()
        elif surplus > 0:
            connection.refuse(Unavailable("too many connections", code="too_many_connections"))

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self._look_if_quiet()

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

    async def _listen(self, sock: socket.socket, context: ssl.SSLContext | None) -> asyncio.AbstractServer:
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        handshake_s = self.config.header_timeout_s if context else None
        return await create(
            lambda: Connection(self, loop),
            sock=sock,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=handshake_s,
        )

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._remove_unix_path()

    async def _bind_all(self) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        try:
            for host in self.config.rest_bind_address.split(","):
                sockets += await _bind(host.strip().strip("[]"), self.config.rest_port)
        except StartError:
            for sock in sockets:
                sock.close()
            raise
        return sockets

    def _bind_unix(self) -> socket.socket:
        path = Path(self.config.unix_socket)
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(path))
        except OSError as error:
            sock.close()
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from None
        self._unix_inode = path.stat().st_ino
        return sock

    def _remove_unix_path(self) -> None:
        """Remove our socket, unless something else stands there by now."""
        path = Path(self.config.unix_socket)
        if self._unix_inode is None:
            return
        try:
            if path.stat().st_ino == self._unix_inode:
                path.unlink()
        except FileNotFoundError:
            pass  # newer Pythons remove it when the listener closes


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets for every address of host. An address that this machine does not have is skipped if another works."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise StartError(f"cannot listen on {host}: {error.strerror or error}") from None
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bind_one(family, address))
        except OSError as error:
            refused = error
            if error.errno not in _NOT_HERE:
                break
    if refused is not None and (not sockets or refused.errno not in _NOT_HERE):
        for sock in sockets:
            sock.close()
        raise StartError(f"cannot listen on {host}:{port}: {os.strerror(refused.errno or 0)}")
    return sockets


def _bind_one(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # so that "0.0.0.0,::" can both be had
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on any more; anything else at this path is left alone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"cannot listen on {path}: it exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from None
        else:
            raise StartError(f"cannot listen on {path}: another process is listening there")


def _tls(config: Config) -> ssl.SSLContext | None:
    if not config.ssl_certfile:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An encrypted key fails here; without the password argument OpenSSL would ask on the terminal.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise StartError(f"cannot use --ssl_certfile and --ssl_keyfile: {reason}") from None
    return context


def _url(sock: socket.socket, tls: bool) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    name = f"[{host}]" if sock.family == socket.AF_INET6 else host
    return f"{'https' if tls else 'http'}://{name}:{port}"
