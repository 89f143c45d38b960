"""All transports for the same app, each with a client behind one small interface."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from starlette.requests import Request as StarletteRequest

from lean_ovms.composition import compose
from lean_ovms.config import Config
from lean_ovms.features.asgi.adapter import Asgi
from lean_ovms.ray_serve import LeanOvms
from lean_ovms.transports.http11.connection import HttpConnection
from lean_ovms.transports.http11.server import Server
from lean_ovms.types import Handle, Request
from tests.streams import pieces
from tests.transports.http11.fakes import FakeServer, FakeTransport

LIMIT = 2048
"""The body limit of all transports here, in bytes."""


class TransportClient(Protocol):
    """A client of one transport. `status` is None until the header of the answer has arrived; `data` is the body so
    far."""

    status: int | None
    data: bytes
    whole: bool  # whether the body is complete, and the client knows this

    async def ask(self, method: str, path: str, body: bytes) -> None:
        """Sends a request without waiting for its answer."""

    async def leave(self) -> None:
        """Disconnects."""

    async def stop(self) -> None:
        """Shuts the transport down after the test."""


class Socket:
    """http11 on a real socket."""

    def __init__(self, handle: Handle) -> None:
        self.server = Server(Config(rest_port=0, rest_bind_address="127.0.0.1", max_body_bytes=LIMIT), handle)
        self.status: int | None = None
        self.data = b""
        self.whole = False

    async def ask(self, method: str, path: str, body: bytes) -> None:
        await self.server.start()
        host, _, port = self.server.addresses[0].partition("://")[2].rpartition(":")
        reader, self.writer = await asyncio.open_connection(host, int(port))
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        self.reading = asyncio.ensure_future(self._read(reader, method))

    async def _read(self, reader: asyncio.StreamReader, method: str) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            self.status = int(head.split()[1])
            if method == "HEAD":
                self.whole = True
            elif "chunked" in head:
                await self._read_chunks(reader)
            else:
                self.data = await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
                self.whole = True

    async def _read_chunks(self, reader: asyncio.StreamReader) -> None:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            self.data += (await reader.readexactly(size + 2))[:-2]
        self.whole = True

    async def leave(self) -> None:
        self.writer.close()

    async def stop(self) -> None:
        self.reading.cancel()
        self.writer.close()
        await self.server.drain(0)
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await self.writer.wait_closed()
        assert self.server.active_requests == 0


class Fake:
    """http11 on a fake transport; the client disconnects with a reset."""

    def __init__(self, handle: Handle) -> None:
        self.server = FakeServer(handle, Config(max_body_bytes=LIMIT))

    async def ask(self, method: str, path: str, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.connection = HttpConnection(self.server, loop)
        self.transport = FakeTransport(loop, self.connection)
        self.connection.connection_made(self.transport)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.peer_sends(head.encode() + body)

    @property
    def _parts(self) -> tuple[bytes, bytes]:
        head, _, rest = self.transport.received.partition(b"\r\n\r\n")
        return head, rest

    @property
    def status(self) -> int | None:
        head = self._parts[0]
        return int(head.split()[1]) if head else None

    @property
    def data(self) -> bytes:
        head, rest = self._parts
        if b"chunked" not in head:
            return rest
        pieces = rest.split(b"\r\n")
        return b"".join(pieces[1::2])

    @property
    def whole(self) -> bool:
        head, rest = self._parts
        return bool(head) and (b"chunked" not in head or not rest or rest.endswith(b"0\r\n\r\n"))

    async def leave(self) -> None:
        self.transport.peer_resets()

    async def stop(self) -> None:
        self.connection.cancel()
        await asyncio.sleep(0)
        self.transport.peer_resets()
        await asyncio.sleep(0)
        assert self.server.active_requests == 0


class AsgiByHand:
    """The ASGI app called message by message. With spec 2.4, send raises an error when the client has disconnected."""

    spec = "2.3"

    def __init__(self, handle: Handle) -> None:
        self.app = Asgi(handle, LIMIT, error_forms=compose().error_forms)
        self.status: int | None = None
        self.data = b""
        self.whole = False
        self.left = asyncio.Event()
        self.pieces: list[bytes] = []

    async def ask(self, method: str, path: str, body: bytes) -> None:
        self.pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)] or [b""]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": self.spec},
            "method": method,
            "path": path,
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"x")],
            "client": ("192.0.2.7", 4711),
        }
        self.call = asyncio.ensure_future(self.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self.pieces and not self.left.is_set():
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.left.is_set():
            if self.spec >= "2.4":
                raise OSError("the client has left")
            return
        if message["type"] == "http.response.start":
            assert self.status is None
            self.status = message["status"]
        else:
            assert self.status is not None
            self.data += message["body"]
            self.whole = not message.get("more_body", False)

    async def leave(self) -> None:
        self.left.set()

    async def stop(self) -> None:
        self.left.set()
        await asyncio.wait({self.call})
        if not self.call.cancelled():
            self.call.exception()


class AsgiByHand24(AsgiByHand):
    """An AsgiByHand with spec 2.4."""

    spec = "2.4"


class AsgiDeaf(AsgiByHand24):
    """A host with spec 2.4 whose receive never reports a disconnect: the only sign is send's OSError."""

    async def _receive(self) -> dict[str, Any]:
        if self.pieces:
            return await super()._receive()
        await asyncio.Event().wait()
        raise AssertionError

    async def stop(self) -> None:
        self.call.cancel()
        await super().stop()


class AsgiHostCancels(AsgiByHand):
    """A host that cancels the call when the client disconnects, like Ray Serve."""

    async def leave(self) -> None:
        self.call.cancel()


class InProcess:
    """The app called as a function, as embedding programs and tests do. Disconnecting means cancelling."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.status: int | None = None
        self.data = b""
        self.whole = False

    async def ask(self, method: str, path: str, body: bytes) -> None:
        self.task = asyncio.ensure_future(self._exchange(Request(method, path, "", {}, body)))

    async def _exchange(self, request: Request) -> None:
        response = await self.handle(request)
        try:
            if isinstance(response.body, bytes):
                self.status, self.data = response.status, response.body
            else:
                async for data in pieces(response.body):
                    self.status = response.status
                    self.data += data
            self.whole = True
        finally:
            await response.aclose()

    async def leave(self) -> None:
        self.task.cancel()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class RayServe(AsgiHostCancels):
    """Ray Serve as documented: the deployment gets a Starlette request, its result is sent, and the task of both is
    cancelled when the client disconnects. A response's receive reports nothing."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self.replica = LeanOvms.__new__(LeanOvms)
        self.replica._asgi = self.app
        self.app = self._replica  # type: ignore[assignment]

    async def _replica(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self.replica(StarletteRequest(scope, receive))
        await response(scope, self._deaf, send)

    async def _deaf(self) -> Any:
        await asyncio.Event().wait()


class RayServeTells(RayServe):
    """A RayServe in which the request's receive first reports that the client has disconnected."""

    leave = AsgiByHand.leave


class RayServeRaises(RayServe):
    """A RayServe in which the request's receive raises one of Ray's errors instead."""

    leave = AsgiByHand.leave

    async def _receive(self) -> dict[str, Any]:
        if (message := await super()._receive())["type"] == "http.disconnect":
            raise LookupError("TaskCancelledError")
        return message


ALL = {
    "socket": Socket,
    "fake transport": Fake,
    "asgi 2.3": AsgiByHand,
    "asgi 2.4": AsgiByHand24,
    "asgi, host cancels": AsgiHostCancels,
    "ray serve": RayServe,
    "ray serve, receive tells": RayServeTells,
    "ray serve, receive raises": RayServeRaises,
    "in-process": InProcess,
}
NETWORK = {name: transport for name, transport in ALL.items() if name != "in-process"}
"""Transports that turn errors into responses and check limits; in-process callers get what the handler does."""
