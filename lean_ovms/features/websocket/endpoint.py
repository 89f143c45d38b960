"""Helpers for endpoints with WebSockets: refusing one, limiting their number, and reading messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from ...api.services import Service, Services
from ...errors import BadRequest, RequestError, TooManyRequests, Unavailable
from ...observability.records import current_client
from ...types import Json, Request
from ...util.concurrency import share
from .handshake import PROTOCOL, VERSION
from .types import Close, Upgrade, WebSocket, WebSocketMessage

S = TypeVar("S")
T = TypeVar("T")


class UpgradeRequired(RequestError):
    """Status 426: the path is a WebSocket, and the request does not open one."""

    status = 426
    code = "upgrade_required"

    def headers(self) -> list[tuple[str, str]]:
        return [("Upgrade", PROTOCOL), ("Sec-WebSocket-Version", VERSION)]


def no_upgrade(request: Request) -> BadRequest | UpgradeRequired:
    """Returns the error that says why a request does not open a WebSocket."""
    headers = request.headers
    if PROTOCOL not in headers.get("upgrade", "").lower() or "upgrade" not in headers.get("connection", "").lower():
        return UpgradeRequired("this path is a WebSocket: send Upgrade: websocket and Connection: Upgrade")
    if headers.get("sec-websocket-version") != VERSION:
        return UpgradeRequired(f"only version {VERSION} of WebSocket is supported: Sec-WebSocket-Version: {VERSION}")
    return BadRequest(
        "a WebSocket needs a GET of HTTP/1.1 with a Sec-WebSocket-Key of 16 bytes in base64", code="invalid_handshake"
    )


async def read_event(message: WebSocketMessage, services: Services, read: Callable[[Json], T]) -> T:
    """Returns the result of `read` for the JSON event in a message. Raises RequestError.

    A large message counts toward the memory for bodies, and is parsed like a body, with `read` in the offload thread.
    """

    def checked(event: Json, services: Services) -> T:
        if not isinstance(event.get("type"), str):
            raise BadRequest("An event must be a JSON object with a type", param="type", code="invalid_event")
        return read(event)

    request = Request("GET", "", body=message.data)
    lease = await services.count_body(request.size)
    del message  # so that parse_body can free the bytes
    try:
        return await services.parse_body(request, checked)
    finally:
        lease.release()


class OpenWebSockets(Service, Generic[S]):
    """The open WebSockets of an endpoint, each with its session. Their number is limited, and they end at shutdown."""

    def __init__(self, most: int, refusal: str) -> None:
        """Creates the endpoint without connections.

        `refusal` is the error message for more than `most` connections, or more than three quarters of these of one
        client.
        """
        self._most, self._refusal = most, refusal
        self._clients: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        self.sessions: set[S] = set()
        self._ended = asyncio.Event()  # set while there is no session
        self._ended.set()

    def upgrade(self, serve: Callable[[WebSocket], Awaitable[Close]], **options: Any) -> Upgrade:
        """Returns the response that opens a WebSocket, created with these options of Upgrade. Raises RequestError."""
        if self.stopping.is_set():
            raise Unavailable("the server is shutting down", code="shutting_down")
        client = current_client()
        if self._clients.total() >= self._most or self._clients[client] >= share(self._most):
            raise TooManyRequests(self._refusal, code="too_many_sessions")
        self._clients[client] += 1
        upgrade = Upgrade(serve, **options)
        upgrade.on_close.append(partial(self._release, client))
        return upgrade

    def _release(self, client: str) -> None:
        self._clients -= Counter((client,))  # removes counts of zero

    @contextlib.contextmanager
    def opened(self, session: S) -> Iterator[None]:
        """Counts a session as open inside the `with` block."""
        self.sessions.add(session)
        self._ended.clear()
        try:
            yield
        finally:
            self.sessions.remove(session)
            if not self.sessions:
                self._ended.set()

    async def drain(self, timeout_s: float) -> None:
        """Waits at most timeout_s seconds until running work is finished. The transport ends what is left."""
        await self.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    async def close(self) -> None:
        """Refuses new WebSockets, and tells the open ones to stop."""
        self.stopping.set()
