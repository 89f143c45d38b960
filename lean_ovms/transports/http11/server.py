"""The HTTP/1.1 server: listening, limits over all connections, graceful shutdown. run.py handles signals."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from ...config import Config
from ...errors import StartError
from ...manifest import ENCRYPTION
from .connection import HttpConnection
from .protocol import response_head
from .server_state import ServerState

BACKLOG = 1024
"""The number of connections that the kernel queues. It caps this at net.core.somaxconn (4096 on current Linux)."""

CLOSING_S = 2.0
"""Seconds at the end of `drain` for cancelled requests to close their responses and for remaining bytes."""

ENDING_S = 1.0
"""Seconds, before CLOSING_S, in which requests end with an error. Most take no time, but a client may read slowly."""

log = logging.getLogger("lean_ovms.transports")


class Encryption(Protocol):
    """Encrypts the connections of a server."""

    context: ssl.SSLContext
    """The TLS context of new connections. Open connections keep the old one."""

    async def watch(self) -> None:
        """Loads certificates that are replaced, once they are complete; never returns."""

    @staticmethod
    def introduce(context: ssl.SSLContext, config: Config) -> None:
        """Prepares a client's context for this machine's own server, with its certificate if one is required."""


class Server(ServerState):
    """Serves requests on the configured addresses, started once, after `bind` or without, and drained repeatedly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.addresses: list[str] = []
        """The addresses as URLs, with the actual port."""
        self._bound: list[socket.socket] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._reload_task: asyncio.Task[None] | None = None
        self._unix_inode: int | None = None

    async def bind(self) -> None:
        """Binds the addresses without listening yet. Raises StartError if an address cannot be bound."""
        if self.config.unix_socket:
            sock, self._unix_inode = bind_unix(Path(self.config.unix_socket))
            self._bound = [sock]
            return
        further = {option: self.config.value(option) for option in self.config.composition.ports}
        ports = {"rest_port": self.config.rest_port} | {option: port for option, port in further.items() if port}
        for (option, port), host in product(ports.items(), _hosts(self.config.rest_bind_address)):
            try:
                self._bound += await bind(host, port, option=option, reuse=self.config.reuse_port)
            except StartError:
                self._stop_listening()
                raise

    async def start(self) -> None:
        """Begins to listen. Raises StartError if an address, a certificate or the Unix socket cannot be used."""
        _check_cors(self.config)
        new_encryption = self.config.part(ENCRYPTION)
        encryption: Encryption | None = new_encryption(self.config) if new_encryption else None
        context = encryption.context if encryption else None
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
        if encryption:
            self._reload_task = asyncio.get_running_loop().create_task(encryption.watch())

    async def drain(self, timeout_s: float, end: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stops listening, lets requests run for timeout_s, and returns when all connections are closed.

        After that time, `end` makes running requests end with an error, the last event of a stream. Those that have not
        ended after ENDING_S are cancelled; without `end` all are.
        """
        self.draining = True
        self._idle = asyncio.Event()
        self._stop_listening()
        for connection in list(self.connections):
            connection.drain()
        if await self._idle_within(timeout_s):
            return
        if self.active_requests:
            log.warning("ending %d requests that did not finish within %g s", self.active_requests, timeout_s)
        if end is None:
            await self._cancel()
            return
        ending = asyncio.ensure_future(end())
        try:
            if not (self.active_requests and await self._idle_within(ENDING_S)):
                await self._cancel()
        finally:
            await ending

    async def _cancel(self) -> None:
        """Cancels the requests that are still running, and closes all connections."""
        for connection in list(self.connections):
            connection.cancel()
        if not await self._idle_within(CLOSING_S):
            for connection in list(self.connections):
                connection.abort()
            await self._idle_within(CLOSING_S)

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
            partial(HttpConnection, self, loop),
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
    """Returns the items of a comma-separated list. Empty items are dropped, since they would mean "all addresses"."""
    hosts = [host.strip().strip("[]") for host in addresses.split(",")]
    return [host for host in hosts if host] or [""]


def _check_cors(config: Config) -> None:
    try:
        for origin in config.origins:
            response_head(200, config.cors_headers(origin), "")
    except ValueError:
        raise StartError(
            "--allowed_origins, --allowed_methods or --allowed_headers contains characters that a header must not have"
        ) from None


# --- listening sockets, whose every failure is a StartError of one line

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def bind(host: str, port: int, *, option: str, reuse: bool = False) -> list[socket.socket]:
    """Returns bound sockets for every address of a host.

    An address that this machine lacks is skipped if another works.

    Args:
        host: The name or address of the host; "" for all addresses of this machine.
        port: The port.
        option: The option that set the port, for errors.
        reuse: Whether the port may be shared with other sockets of this user that allow it, too.

    Raises:
        StartError: The host is unknown, or a socket cannot be bound.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise StartError(
            f"cannot listen on {host}: {why}; --rest_bind_address must be an address of this machine"
        ) from None
    sockets: list[socket.socket] = []
    missing = 0
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bind_one(family, address, reuse=reuse))
        except OSError as error:
            missing = error.errno or 0
            if missing not in _NOT_HERE:
                close_all(sockets)
                raise _not_bound(host, port, missing, option, reuse=reuse) from None
    if not sockets:
        raise _not_bound(host, port, missing, option)
    return sockets


def _not_bound(host: str, port: int, number: int, option: str, *, reuse: bool = False) -> StartError:
    """Returns the error for an address that cannot be bound.

    Args:
        host: The name or address of the host.
        port: The TCP port.
        number: The errno of the failure.
        option: The option that set the port.
        reuse: Whether the port may be shared with other sockets of this user.
    """
    shared = ", which was started without --reuse_port" if reuse else ""
    zero = "a free one" if option == "rest_port" else "none"
    next_step = {
        errno.EADDRINUSE: f"; stop the program that uses it{shared}, or set another port with --{option} (0: {zero})",
        errno.EACCES: f"; ports below 1024 need privileges: choose another port with --{option}",
        errno.EADDRNOTAVAIL: "; --rest_bind_address must be an address of this machine",
    }
    why = f"cannot listen on {host}:{port}: {os.strerror(number)}{next_step.get(number, '')}"
    return StartError(why, temporary=number == errno.EADDRINUSE)


def _bind_one(family: int, address: Any, *, reuse: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # so that "0.0.0.0,::" works
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def bind_unix(path: Path) -> tuple[socket.socket, int]:
    """Returns a Unix socket bound to the path, instead of one without a listener, and its inode. Raises StartError."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise _unix_error(path, error) from None
    return sock, path.lstat().st_ino


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unix_error(path, error) from None
    if not stat.S_ISSOCK(mode):
        raise StartError(f"cannot listen on {path}: it exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # the other process does not accept connections at the moment
        except OSError as error:
            raise _unix_error(path, error) from None
        raise StartError(f"cannot listen on {path}: another process is listening there", temporary=True)


def _unix_error(path: Path, error: OSError) -> StartError:
    next_step = {
        errno.ENOENT: "; the directory of --unix_socket must exist",
        errno.EACCES: "; the directory of --unix_socket must be writable for this user",
    }
    return StartError(f"cannot listen on {path}: {error.strerror or error}{next_step.get(error.errno or 0, '')}")


def remove_unix(path: Path, inode: int) -> None:
    """Removes the server's own socket, unless something else is at the path by now."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        pass  # newer Pythons remove it when the listener closes


def close_all(sockets: list[socket.socket]) -> None:
    """Closes sockets that will not be used, and removes those of Unix paths."""
    while sockets:
        sockets.pop().close()


def url(sock: socket.socket, tls: bool) -> str:
    """Returns the URL of a listening socket."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    name = f"[{host}]" if sock.family == socket.AF_INET6 else host
    return f"{'https' if tls else 'http'}://{name}:{port}"
