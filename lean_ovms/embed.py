"""The server inside a Python program: with sockets (`running`), without (`opened`), asked directly (`Client`).

Nothing here touches signals, the event loop's policy or the process: those are the program's. Engines are processes of
their own; they end with the block that started them, and with the thread that entered it (Linux tells a child of the
end of the thread that started it, not of the process).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from .api.app import App
from .config import Config
from .errors import StartError
from .observability.logging import setup as setup_logging
from .server.run import build, close, load, watch
from .transports.asgi import Asgi
from .transports.http11.server import Server
from .types import Json, Request, Response

__all__ = [
    "App",
    "Client",
    "ClientError",
    "Config",
    "Request",
    "Response",
    "Running",
    "StartError",
    "asgi",
    "opened",
    "running",
    "setup_logging",
]
CHAT, DONE = "/v1/chat/completions", b"[DONE]"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens. addresses: as URLs, with the real ports. client: asks it without a socket."""

    app: App
    addresses: list[str]

    @property
    def client(self) -> Client:
        return Client(self.app)


@contextlib.asynccontextmanager
async def opened(config: Config | None = None, **options: Any) -> AsyncIterator[App]:
    """An app with its models loaded: `await app.handle(request)`, or behind `asgi`. options: fields of Config.

    At the end of the block running requests are cancelled and engines stopped. Raises StartError.
    """
    app = build(config or Config(**options))
    watching: asyncio.Future[None] | None = None
    try:
        await load(app)
        watching = asyncio.ensure_future(watch(app))
        yield app
    finally:
        app.draining = True
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        await close(app)


@contextlib.asynccontextmanager
async def running(config: Config | None = None, **options: Any) -> AsyncIterator[Running]:
    """A server on the addresses of the options, in this event loop; its models are loaded. Raises StartError.

    At the end of the block running requests may finish for drain_timeout_s; after an exception they are cancelled.
    """
    async with opened(config, **options) as app:
        server = Server(app.config, app.handle)
        try:
            await server.start()
            yield Running(app, list(server.addresses))
            app.draining = True
            patience_s = app.config.drain_timeout_s
            await asyncio.gather(server.drain(patience_s), app.responses.settle(patience_s))
        finally:
            await server.drain(0)


def asgi(app: App) -> Asgi:
    """The app as an ASGI callable, to mount in Starlette or FastAPI, or for a host such as uvicorn."""
    return Asgi(app.handle, app.config.max_body_bytes)


class ClientError(Exception):
    """An answer that is an error. status: the HTTP status. error: OpenAI's error object."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(f"{status}: {error.get('message', 'unknown error')}")
        self.status = status
        self.error = error


class Client:
    """Asks an app of this process as an HTTP client would, without sockets. One may be used by many tasks."""

    def __init__(self, app: App) -> None:
        self._app = app
        key = app.config.api_key
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}

    async def chat(self, messages: str | list[Json], **fields: Any) -> str:
        """The text that answers these messages; a string is one message of the user. fields: of the request."""
        answer = await self.post(CHAT, self._chat(messages, fields))
        return answer["choices"][0]["message"]["content"] or ""

    async def chat_stream(self, messages: str | list[Json], **fields: Any) -> AsyncGenerator[str, None]:
        """The same, in pieces as they come."""
        async with contextlib.aclosing(self.stream(CHAT, self._chat(messages, fields))) as chunks:
            async for chunk in chunks:
                for choice in chunk["choices"]:
                    if text := choice["delta"].get("content"):
                        yield text

    async def get(self, path: str) -> Any:
        """The answer to a GET, from JSON. Raises ClientError."""
        return await self._ask("GET", path, b"")

    async def post(self, path: str, body: Json) -> Any:
        """The answer to a POST of this body, from JSON. Raises ClientError."""
        return await self._ask("POST", path, orjson.dumps(body))

    async def stream(self, path: str, body: Json) -> AsyncGenerator[Any, None]:
        """The events that answer a POST, as they come. Leaving the loop cancels the request, at the latest when the
        iterator is closed. Raises ClientError, also in the middle."""
        response = await self._handle("POST", path, orjson.dumps({**body, "stream": True}))
        try:
            if isinstance(response.body, bytes):
                _content(response)
                return
            async for block in _blocks(response.body):
                yield _event(block)
        finally:
            await response.aclose()

    async def _ask(self, method: str, path: str, body: bytes) -> Any:
        response = await self._handle(method, path, body)
        try:
            return _content(response)
        finally:
            await response.aclose()

    async def _handle(self, method: str, path: str, body: bytes) -> Response:
        plain, _, query = path.partition("?")
        return await self._app.handle(Request(method, plain, query, self._headers, body, "in-process"))

    def _chat(self, messages: str | list[Json], fields: Json) -> Json:
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return {"model": next(iter(self._app.registry.models), ""), "messages": said, **fields}


def _content(response: Response) -> Any:
    if not isinstance(response.body, bytes):
        raise ClientError(response.status, {"message": "the answer is a stream: use Client.stream"})
    content: Any = orjson.loads(response.body) if response.body else None
    if response.status >= 400:
        raise ClientError(response.status, content["error"])
    return content


async def _blocks(body: Any) -> AsyncIterator[bytes]:
    """The data of every event but the last, which says that all is over."""
    rest = b""
    async for data in body:
        *blocks, rest = (rest + data).split(b"\n\n")
        for block in blocks:
            lines = [line[6:] for line in block.split(b"\n") if line.startswith(b"data: ")]
            if lines and lines[0] != DONE:
                yield lines[0]


def _event(data: bytes) -> Any:
    event = orjson.loads(data)
    if isinstance(event, dict) and isinstance(event.get("error"), dict) and "choices" not in event:
        raise ClientError(500, event["error"])
    return event
