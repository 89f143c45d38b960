"""What the endpoints with WebSockets share: why there is none, how many may be open, how a message is read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

from ..errors import BadRequest, TooManyRequests, Unavailable, UpgradeRequired
from ..observability.records import current_client
from ..types import Json, Request
from ..websocket_types import Close, Upgrade, WebSocket, WebSocketMessage
from .services import Services

S = TypeVar("S")
T = TypeVar("T")


def no_upgrade(request: Request) -> BadRequest | UpgradeRequired:
    """Why this request opens no WebSocket."""
    headers = request.headers
    if "websocket" not in headers.get("upgrade", "").lower() or "upgrade" not in headers.get("connection", "").lower():
        return UpgradeRequired("this path is a WebSocket: send Upgrade: websocket and Connection: Upgrade")
    if headers.get("sec-websocket-version") != "13":
        return UpgradeRequired("only version 13 of WebSocket is supported: Sec-WebSocket-Version: 13")
    return BadRequest("Sec-WebSocket-Key must be 16 bytes in base64, of a GET of HTTP/1.1", code="invalid_handshake")


async def read_event(message: WebSocketMessage, services: Services, read: Callable[[Json], T]) -> T:
    """What read makes of the event in a message. A large one counts and is parsed as the body of a request: read runs
    in the offload thread. Raises RequestError.
    """

    def checked(event: Json, services: Services) -> T:
        if not isinstance(event.get("type"), str):
            raise BadRequest("An event is a JSON object with a type", param="type", code="invalid_event")
        return read(event)

    request = Request("GET", "", body=message.data)
    lease = await services.count_body(request.size)
    del message  # parse_body frees the bytes once they are parsed
    try:
        return await services.parse_body(request, checked)
    finally:
        lease.release()


class Places:
    """Counts what is open. most: of all clients; one client gets three quarters. refusal: the message beyond that."""

    def __init__(self, most: int, refusal: str) -> None:
        self._most = most
        self._most_of_client = max(1, most - most // 4)
        self._refusal = refusal
        self._clients: dict[str, int] = {}

    def reserve(self, client: str) -> None:
        """A place for this client. Raises TooManyRequests."""
        mine = self._clients.get(client, 0)
        if sum(self._clients.values()) >= self._most or mine >= self._most_of_client:
            raise TooManyRequests(self._refusal, code="too_many_sessions")
        self._clients[client] = mine + 1

    def release(self, client: str) -> None:
        """Give the place back."""
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]


class OpenWebSockets(Generic[S]):
    """The open WebSockets of an endpoint, each with its session: their number is limited, and at shutdown each ends."""

    def __init__(self, most: int, refusal: str) -> None:
        self.stopping = asyncio.Event()
        self.sessions: set[S] = set()
        self._places = Places(most, refusal)
        self._ended = asyncio.Event()  # there is no session
        self._ended.set()

    def upgrade(self, serve: Callable[[WebSocket], Awaitable[Close]], **options: Any) -> Upgrade:
        """The answer that opens a WebSocket, with Upgrade's options. Raises RequestError."""
        if self.stopping.is_set():
            raise Unavailable("the server is shutting down", code="shutting_down")
        client = current_client()
        upgrade = Upgrade(serve, **options)
        self._places.reserve(client)
        upgrade.on_close.append(lambda: self._places.release(client))
        return upgrade

    @contextlib.contextmanager
    def opened(self, session: S) -> Iterator[None]:
        """Counts a session as open inside the block."""
        self.sessions.add(session)
        self._ended.clear()
        try:
            yield
        finally:
            self.sessions.remove(session)
            if not self.sessions:
                self._ended.set()

    async def drain(self, timeout_s: float) -> None:
        """Lets what runs finish, within timeout_s; the transport ends what is left."""
        await self.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    async def close(self) -> None:
        """Refuses new WebSockets, and tells the open ones to stop."""
        self.stopping.set()
