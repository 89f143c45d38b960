"""Creates listening sockets and their names. Every failure is a StartError of one line."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

from ...errors import StartError

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
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _unix_error(path, error) from None
        else:
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
