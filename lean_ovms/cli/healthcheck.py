"""`lean-ovms healthcheck`: whether the server with these options is ready, as an exit status.

`lean-ovms healthcheck --pid 1` takes the options of a running server from its command line, so that a container's
health check follows whatever the container was started with.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config import Config
from ..errors import StartError
from ..server import exit_status
from .arguments import parse
from .completion import COMMANDS

READY = "/v2/health/ready"
TIMEOUT_S = 4.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1", "": "127.0.0.1"}
"""The address by which this machine reaches a server that listens on all addresses."""


def main(argv: Sequence[str], environ: Mapping[str, str], root: Path = Path("/proc")) -> int:
    """Returns the exit status: 0 if the server is ready. The reason of a failure goes to stderr."""
    try:
        if argv[:1] == ["--pid"] and len(argv) == 2:
            argv = options_of(root, argv[1])
        config = parse(argv, environ)
        check(config)
    except StartError as error:
        return _fail(error, exit_status.USAGE)
    except (OSError, http.client.HTTPException) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else repr(error)
        return _fail(f"no answer from {_address(config)}: {reason}", exit_status.FAILED)
    except NotReady as error:
        return _fail(error, exit_status.FAILED)
    return exit_status.OK


class NotReady(Exception):
    """The server answers, and is not ready."""


def check(config: Config) -> None:
    """Raises NotReady, StartError for options without a known address, or OSError."""
    connection = _connection(config)
    try:
        connection.request("GET", READY, headers={"Host": "localhost", "Connection": "close"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise NotReady(f"{READY} answers {response.status}: {response.read(500).decode('utf-8', 'replace')}")
    finally:
        connection.close()


def options_of(root: Path, pid: str) -> list[str]:
    """Returns the options in the command line of the server that is process pid, or its child. Raises StartError."""
    try:
        words = (root / pid / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError as error:
        raise StartError(f"process {pid}: {error.strerror}") from None
    for place, word in enumerate(words):
        if os.path.basename(word) in COMMANDS:
            return words[place + 1 :]
    raise StartError(f"process {pid} is not lean_ovms: {' '.join(words)[:200]}")


def _address(config: Config) -> str:
    connection = _connection(config)
    return f"unix:{config.unix_socket}" if config.unix_socket else f"{connection.host}:{connection.port}"


def _connection(config: Config) -> http.client.HTTPConnection:
    if config.unix_socket:
        return _UnixConnection(config.unix_socket)
    if not config.rest_port:
        raise StartError("--rest_port 0 is a port that only the server knows")
    first = config.rest_bind_address.split(",")[0].strip().strip("[]")
    host = ANY_ADDRESS.get(first, first)
    if not config.ssl_certfile:
        return http.client.HTTPConnection(host, config.rest_port, timeout=TIMEOUT_S)
    # The certificate is made for the name that clients use, not for this address; nothing secret is sent.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, config.rest_port, timeout=TIMEOUT_S, context=context)


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def _fail(message: object, status: int) -> int:
    print(f"lean_ovms healthcheck: {message}", file=sys.stderr)
    return status
