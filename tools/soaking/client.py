"""A client connection that can behave badly: disconnect in the middle, read slowly, or stop reading. Uses h11.

It knows nothing of the requests. It reports what it received, and never raises an error for what the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import h11

SLOW_BYTES, SLOW_S = 300, 0.05
"""The number of bytes that a slow reader reads at a time, and its pause in seconds after each read."""
STALL_S = 3.0
"""Seconds for which a stalling reader stops reading."""


@dataclass(frozen=True)
class Manner:
    """How a client behaves."""

    name: str = "patient"
    leaves_after: int | None = None
    """Disconnects after this many bytes of the answer; None: stays until the end."""
    slow: bool = False
    """Reads a few bytes at a time."""
    stalls: bool = False
    """Stops reading for a while after the first bytes."""


@dataclass
class Seen:
    """What a client received."""

    status: int = 0
    """The HTTP status, 0 if there was no answer."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    """Whether the end of the body was received."""
    trouble: str = ""
    """The error that ended the exchange."""
    began: float = field(default_factory=time.monotonic)
    """The time at which the request began, as time.monotonic() gives it."""
    first_s: float | None = None
    """Seconds to the first byte of the body; None if there was none."""
    ended: float = 0.0
    """The time at which the exchange ended."""


class Connection:
    """A keep-alive connection, which is opened again if it was closed."""

    def __init__(self, port: int, client: str = "") -> None:
        """Takes the port of the server, and the address that the client has according to its X-Forwarded-For header."""
        self._port = port
        self._client = client
        self._http: h11.Connection | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def ask(
        self, method: str, path: str, body: dict[str, Any] | None, request_id: str, manner: Manner, patience_s: float
    ) -> Seen:
        """Sends a request, and returns what the server answered within `patience_s` seconds.

        Errors and timeouts are reported as `trouble`.
        """
        seen = Seen()
        try:
            await asyncio.wait_for(self._ask(seen, method, path, body, request_id, manner), patience_s)
        except asyncio.TimeoutError:
            seen.trouble = f"no end within {patience_s:g} s"
        except (OSError, h11.RemoteProtocolError, EOFError) as error:
            seen.trouble = f"{type(error).__name__}: {error}"
        seen.ended = time.monotonic()
        if not seen.whole or manner.slow or "close" in seen.headers.get("connection", ""):
            await self.close()
        return seen

    async def close(self) -> None:
        """Closes the connection."""
        if self._http is not None:
            self._http = None
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def _open(self, manner: Manner) -> h11.Connection:
        if self._http is not None and not (manner.slow or manner.stalls):
            self._http.start_next_cycle()
            return self._http
        await self.close()
        sock = socket.socket()
        sock.setblocking(False)
        limit = 1 << 16
        if manner.slow or manner.stalls:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            limit = 512
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
            self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=limit)
        except BaseException:
            sock.close()
            raise
        self._http = h11.Connection(h11.CLIENT)
        return self._http

    async def _ask(
        self, seen: Seen, method: str, path: str, body: dict[str, Any] | None, request_id: str, manner: Manner
    ) -> None:
        http = await self._open(manner)
        data = b"" if body is None else json.dumps(body).encode()
        headers = [("Host", "soak"), ("X-Request-Id", request_id), ("Content-Length", str(len(data)))]
        if data:
            headers.append(("Content-Type", "application/json"))
        if self._client:
            headers.append(("X-Forwarded-For", self._client))
        out = http.send(h11.Request(method=method, target=path, headers=headers)) or b""
        out += http.send(h11.Data(data=data)) or b""
        out += http.send(h11.EndOfMessage()) or b""
        self._writer.write(out)
        await self._writer.drain()
        if manner.leaves_after == 0:
            await asyncio.sleep(0.05)
            return
        await self._read(seen, http, manner)

    async def _read(self, seen: Seen, http: h11.Connection, manner: Manner) -> None:
        stalled = False
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(SLOW_BYTES if manner.slow else 1 << 16)
                http.receive_data(data)
                if manner.slow:
                    await asyncio.sleep(SLOW_S)
            elif isinstance(event, h11.Response):
                seen.status = event.status_code
                seen.headers = {name.decode().lower(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                if seen.first_s is None:
                    seen.first_s = time.monotonic() - seen.began
                seen.body += bytes(event.data)
                if manner.stalls and not stalled:
                    stalled = True
                    await asyncio.sleep(STALL_S)
                if manner.leaves_after is not None and len(seen.body) >= manner.leaves_after:
                    return
            elif isinstance(event, h11.EndOfMessage):
                seen.whole = True
                return
            else:
                raise EOFError(f"the connection ended: {event!r}")
