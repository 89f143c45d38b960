"""Anthropic's client on an app without sockets: its HTTP client calls App.handle.

The client is imported where it is used, because the import takes eight seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx2
import orjson

from lean_ovms.api.app import App
from lean_ovms.types import Request, Response
from tests.api.conftest import parts
from tests.fakes import INFO
from tests.streams import pieces

if TYPE_CHECKING:
    import anthropic

PATH = "/v1/messages"
HELLO = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]}
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
FULL = ("<think>", "hm", "m</think>", "Let me ", 'look.<tool_call>{"name":"get_weather",', '"arguments":{"city":"Os',
        'lo"}}', "</tool_call>")  # fmt: skip
"""An answer with reasoning, text and a call, for the parsers of PARSERS."""
PARSERS = {"tool_parser": "hermes3", "reasoning_parser": "qwen3"}
assert INFO.context_length >= 500


async def stream(response: Response) -> list[tuple[str, Any]]:
    """Returns (event, data) for every event of a stream, and checks that both name the same type."""
    text = b"".join([part async for part in parts(response)])
    assert text.endswith(b"\n\n")
    found = []
    for block in text.removesuffix(b"\n\n").split(b"\n\n"):
        first, second = block.split(b"\n")
        name, data = first.removeprefix(b"event: ").decode(), orjson.loads(second.removeprefix(b"data: "))
        assert data["type"] == name
        found.append((name, data))
    return found


class AppTransport(httpx2.AsyncBaseTransport):
    """The transport of an HTTP client that calls an app. `sent` has the requests."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.sent: list[Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        query = request.url.query.decode()
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Request(request.method, unquote(request.url.path), query, headers, await request.aread())
        self.sent.append(asked)
        response = await self._app.handle(asked)
        if isinstance(response.body, bytes):
            await response.aclose()
            return httpx2.Response(response.status, headers=response.headers, content=response.body)
        return httpx2.Response(response.status, headers=response.headers, stream=_Body(response))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert not isinstance(self._response.body, bytes)
        async for part in pieces(self._response.body):
            yield part

    async def aclose(self) -> None:
        await self._response.aclose()


def client(app: App, **options: Any) -> anthropic.AsyncAnthropic:
    """Returns Anthropic's client for an app."""
    import anthropic

    http = httpx2.AsyncClient(transport=AppTransport(app))
    options = {"api_key": "none", "max_retries": 0, "base_url": "http://app", **options}
    return anthropic.AsyncAnthropic(http_client=http, **options)
