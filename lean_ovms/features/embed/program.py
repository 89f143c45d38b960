"""The server inside a Python program: with sockets (`running`), without sockets (`opened`), or called by a `Client`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ...api.app import App
from ...api.keys import authorization
from ...api.response import whole_body
from ...cli.keywords import of_keywords
from ...config import Config
from ...errors import StartError
from ...observability.logging import setup as setup_logging
from ...server.opened import OfOptions, opened
from ...server.run import drain
from ...transports.http11.server import Server
from ...types import Json, Request, Response
from ...types.push import StreamIterator
from ..asgi.adapter import asgi
from .websocket import Closed, LocalWebSocket, WebSocketRefused, connect

__all__ = [
    "App",
    "Client",
    "ClientError",
    "Closed",
    "Config",
    "Realtime",
    "Request",
    "Response",
    "Running",
    "StartError",
    "asgi",
    "opened",
    "running",
    "setup_logging",
]
CHAT, REALTIME = "/v1/chat/completions", "/v1/realtime"
DATA, DONE = b"data: ", b"[DONE]"
"""What begins the line with the data of a server-sent event, and the data of the last one, which is no event."""
LINES = ("Content-Type", "application/x-ndjson")
"""The header of streams in which each line is an event, as those of Ollama's API are."""


@dataclass(frozen=True, slots=True)
class Running:
    """A listening server."""

    app: App
    """The app, which is called without a socket by `client`."""
    addresses: list[str]
    """The URLs at which it listens, with the real ports."""

    @property
    def client(self) -> Client:
        return Client(self.app)


@OfOptions(Config)
@contextlib.asynccontextmanager
async def running(config: Config | None = None, **options: Any) -> AsyncIterator[Running]:
    """Runs a server on the addresses of the options in this event loop, with its models loaded. Raises StartError.

    At the end of the block, running requests have drain_timeout_s seconds to finish. After an exception they are
    cancelled.
    """
    async with opened(config or of_keywords(**options)) as app:
        server = Server(app.config, app.handle, app.is_vital, app.check_head)
        try:
            await server.start()
            yield Running(app, list(server.addresses))
            app.services.draining = True
            await drain(app, server)
        finally:
            await server.drain(0)


class ClientError(Exception):
    """Raised for an error response."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        """Keeps the HTTP status and the error object, which has a message; OpenAI's endpoints have more members."""
        super().__init__(f"{status}: {error.get('message', 'unknown error')}")
        self.status = status
        self.error = error


class Realtime:
    """A realtime session, whose events are sent and received as JSON objects."""

    def __init__(self, websocket: LocalWebSocket) -> None:
        self._websocket = websocket

    async def send(self, event: Json) -> None:
        """Sends an event of the client. Raises Closed."""
        await self._websocket.send(orjson.dumps(event).decode())

    async def receive(self) -> Json:
        """Returns the next event of the server. Raises Closed after the last one."""
        event: Json = orjson.loads(await self._websocket.receive())
        return event


class Client:
    """Calls an app of this process as an HTTP client would, without sockets. Several tasks may share one."""

    def __init__(self, app: App) -> None:
        self._app = app
        key = app.config.api_key
        self._headers = {"content-type": "application/json", **({"authorization": authorization(key)} if key else {})}

    async def chat(self, messages: str | list[Json], **fields: Any) -> str:
        """Returns the answer to a conversation, or to a text; further fields of the request are keyword arguments."""
        response = await self.post(CHAT, self._chat(messages, fields))
        return response["choices"][0]["message"]["content"] or ""

    async def chat_stream(self, messages: str | list[Json], **fields: Any) -> AsyncGenerator[str, None]:
        """Requests a streamed chat completion, and yields the deltas of the answer's text."""
        async with contextlib.aclosing(self.stream(CHAT, self._chat(messages, fields))) as chunks:
            async for chunk in chunks:
                for choice in chunk["choices"]:
                    if text := choice["delta"].get("content"):
                        yield text

    async def get(self, path: str) -> Any:
        """Returns the parsed JSON response of a GET. Raises ClientError."""
        return await self._request("GET", path, b"")

    async def post(self, path: str, body: Json) -> Any:
        """Returns the parsed JSON response of a POST. Raises ClientError."""
        return await self._request("POST", path, orjson.dumps(body))

    async def stream(self, path: str, body: Json) -> AsyncGenerator[Any, None]:
        """Sends a POST with a streamed response, and yields its parsed events.

        Closing the iterator, at the latest, cancels the request. Raises ClientError, also in the middle of the stream.
        """
        response = await self._handle("POST", path, orjson.dumps({**body, "stream": True}))
        try:
            if isinstance(response.body, bytes):
                _content(response.status, response.body)
                return
            before = b"" if LINES in response.headers else DATA
            async with contextlib.aclosing(StreamIterator(response.body)) as pieces:
                async for line in _lines(pieces):
                    if line.startswith(before) and (data := line[len(before) :]) not in (b"", DONE):
                        yield _event(data)
        finally:
            await response.aclose()

    @contextlib.asynccontextmanager
    async def realtime(self, path: str = REALTIME) -> AsyncIterator[Realtime]:
        """Opens a realtime session over an in-process WebSocket. Raises ClientError if it is refused."""
        try:
            async with connect(self._app.handle, self._of("GET", path, b"")) as websocket:
                yield Realtime(websocket)
        except WebSocketRefused as refused:
            _content(refused.response.status, await whole_body(refused.response))
            raise

    async def _request(self, method: str, path: str, body: bytes) -> Any:
        response = await self._handle(method, path, body)
        if not isinstance(response.body, bytes) and ("Content-Type", "application/json") not in response.headers:
            await response.aclose()
            raise ClientError(response.status, {"message": "the response is a stream: use Client.stream"})
        return _content(response.status, await whole_body(response))

    async def _handle(self, method: str, path: str, body: bytes) -> Response:
        return await self._app.handle(self._of(method, path, body))

    def _of(self, method: str, path: str, body: bytes) -> Request:
        plain, _, query = path.partition("?")
        return Request(method, plain, query, self._headers, body, "in-process")

    def _chat(self, messages: str | list[Json], fields: Json) -> Json:
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return {"model": next(iter(self._app.registry.models), ""), "messages": turns, **fields}


def _content(status: int, body: bytes) -> Any:
    content: Any = orjson.loads(body) if body else None
    if status >= 400:
        raise _refusal(status, content)
    return content


def _refusal(status: int, content: Any) -> ClientError:
    """Returns the exception for an error of any API; some have a text in place of OpenAI's error object."""
    error = content.get("error") if isinstance(content, dict) else content
    return ClientError(status, error if isinstance(error, dict) else {"message": str(error)})


async def _lines(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields each line of a body."""
    rest = b""
    async for data in body:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


def _event(data: bytes) -> Any:
    event = orjson.loads(data)
    error = event.get("error") if isinstance(event, dict) and "choices" not in event else None
    if error and isinstance(error, dict | str):
        raise _refusal(500, event)
    return event
