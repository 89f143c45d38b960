"""WebSockets through ASGI's `websocket` scope, where the host handles the handshake and the frames.

https://asgi.readthedocs.io/en/latest/specs/www.html#websocket. The host is also responsible for limits of messages and
for pings. A refusal keeps its status if the host has the extension websocket.http.response, as uvicorn; otherwise it is
a 403.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ...composition import ErrorForms
from ...errors import InternalError, RequestError
from ...transports.cycle import RequestResponseCycle, request_headers
from ...types import Handle, Response
from ..websocket.channel import STOPPED, Channel
from ..websocket.handshake import PROTOCOLS_HEADER, mark
from ..websocket.types import TOO_BIG, Close, Serve, Upgrade, WebSocketMessage
from .scope import Receive, Scope, Send, request_of, response_headers

DENIAL = "websocket.http.response"


async def serve(handle: Handle, error_forms: ErrorForms, scope: Scope, receive: Receive, send: Send) -> None:
    """Serves one WebSocket to its end.

    Args:
        handle: Answers the request that opens the WebSocket.
        error_forms: The forms of errors by path.
        scope: The host's `websocket` scope.
        receive: Returns the host's next message.
        send: Sends a message to the host.
    """
    if (await receive())["type"] != "websocket.connect":
        return
    headers = request_headers(scope["headers"])
    if scope.get("subprotocols"):
        headers.setdefault(PROTOCOLS_HEADER, ", ".join(scope["subprotocols"]))
    request = request_of(scope, headers, b"")
    mark(request)
    head = request_of(scope, headers, b"")
    cycle = _WebSocketCycle(handle, partial(error_forms.response, request=head), scope, receive, send)
    task = cycle.start(asyncio.get_running_loop(), request)
    try:
        await asyncio.wait({task})
    finally:
        cycle.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


class _WebSocketCycle(RequestResponseCycle):
    """The request that opens a WebSocket, and its response, which is either the WebSocket or a refusal."""

    def __init__(
        self,
        handle: Handle,
        error_response: Callable[[RequestError], Response],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(handle, error_response)
        self._denies = DENIAL in (scope.get("extensions") or {})
        self._receive = receive
        self._send = send
        self._accepted = False

    async def send(self, response: Response) -> None:
        if not isinstance(response, Upgrade):
            await self._deny(response)
            return
        head: dict[str, Any] = {"type": "websocket.accept", "headers": response_headers(response)}
        if response.subprotocol:
            head["subprotocol"] = response.subprotocol
        channel = AsgiChannel(self._receive, self._send, response.max_message_bytes)
        if await channel.emit(head):
            self._accepted = True
            await channel.serve(response.serve)

    async def send_failure(self) -> None:
        if not self._accepted:
            await self._deny(self.error_response(InternalError()))

    async def _deny(self, response: Response) -> None:
        channel = AsgiChannel(self._receive, self._send, 0)
        if not self._denies or not isinstance(response.body, bytes):
            await channel.emit({"type": "websocket.close", "code": 1000})
            return
        headers = [*response_headers(response), (b"content-length", str(len(response.body)).encode())]
        await channel.emit({"type": f"{DENIAL}.start", "status": response.status, "headers": headers})
        await channel.emit({"type": f"{DENIAL}.body", "body": response.body})


class AsgiChannel(Channel):
    """An accepted WebSocket of a host."""

    def __init__(self, receive: Receive, send: Send, max_message_bytes: int) -> None:
        super().__init__(asyncio.get_running_loop())
        self._receive = receive
        self._send = send
        self._max_message_bytes = max_message_bytes
        self._room = asyncio.Event()

    async def serve(self, serve: Serve) -> None:
        """Runs the handler of the WebSocket, then closes it."""
        reading = self._loop.create_task(self._read())
        try:
            await self._close(await self.run(serve))
        except asyncio.CancelledError:
            await self._close(STOPPED)
            raise
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.result()  # passes an error of receive on to the host

    async def send(self, *text: bytes) -> None:
        await self.emit({"type": "websocket.send", "text": b"".join(text).decode()})

    async def emit(self, message: dict[str, Any]) -> bool:
        """Sends a message to the host. Returns False if the client has left."""
        if self.ended.done():
            return False
        try:
            await self._send(message)
        except OSError:
            self.end()
            return False
        return True

    def resume_reading(self) -> None:
        self._room.set()

    async def _read(self) -> None:
        try:
            while (message := await self._receive())["type"] == "websocket.receive":
                text = message.get("text")
                content = (
                    WebSocketMessage(message.get("bytes") or b"", is_text=False)
                    if text is None
                    else WebSocketMessage(text.encode())
                )
                if len(content.data) > self._max_message_bytes:
                    await self.emit({"type": "websocket.close", "code": TOO_BIG, "reason": "the message is too large"})
                    break
                self.put(content)
                while self.full:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self.end()

    async def _close(self, close: Close) -> None:
        await self.emit({"type": "websocket.close", "code": close.code, "reason": close.reason})
