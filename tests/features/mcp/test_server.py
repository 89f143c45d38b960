"""This server as an MCP server: its messages, its tools, and the official client."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lean_ovms.api.app import App
from lean_ovms.features.mcp.server import VERSIONS
from lean_ovms.features.media_files.audio import decoder
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, MakePooling, apps_of, ask, get, post, whole
from tests.fakes import say
from tests.features.images.fakes import fake_image_model
from tests.features.named_keys.files import written
from tests.features.speech.scripts import HELLO, InlineDecoding, speech_model
from tests.features.voice.fakes import fake_voice
from tests.recordings import plain_wav

PATH = "/mcp"
ASKED = {"prompt": "Hello"}


async def sent(app: App, method: str, status: int = 200, **params: Any) -> Any:
    """Returns the result of a request, or its error if the status is not 200 or the result is missing."""
    response = await post(app, PATH, {"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    assert response.status == status, response.body
    body = await whole(response)
    assert (body["jsonrpc"], body["id"]) == ("2.0", 7)
    return body.get("result") or body["error"]


async def called(app: App, name: str, **arguments: Any) -> Any:
    return await sent(app, "tools/call", name=name, arguments=arguments)


async def failed(app: App, name: str, **arguments: Any) -> str:
    """Returns the text of a tool's error."""
    result = await called(app, name, **arguments)
    assert result["isError"] is True
    text: str = result["content"][0]["text"]
    return text


@pytest.mark.parametrize(("asked", "answered"), [(VERSIONS[2], VERSIONS[2]), ("1999-01-01", VERSIONS[0])])
async def test_a_client_gets_its_version_or_the_newest_one(make_app: MakeApp, asked: str, answered: str) -> None:
    app, _ = await make_app()
    result = await sent(app, "initialize", protocolVersion=asked, capabilities={}, clientInfo={})
    assert (result["protocolVersion"], result["capabilities"]) == (answered, {"tools": {}})


async def test_messages_without_an_answer_are_accepted(make_app: MakeApp) -> None:
    app, _ = await make_app()
    for message in ({"method": "notifications/initialized"}, {"id": 1, "result": {}}, {"id": 1, "error": {}}):
        response = await post(app, PATH, {"jsonrpc": "2.0", **message})
        assert (response.status, response.body) == (202, b"")


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({"id": 1, "method": "resources/list"}, {}, 200, -32601),
        ({"id": 1, "method": "tools/call", "params": {"name": "x"}}, {}, 200, -32602),
        ({"id": 1, "method": "tools/call", "params": [1]}, {}, 400, -32600),
        ({"id": 1}, {}, 400, -32600),
        ({}, {}, 400, -32600),
        ({"id": 1, "method": 5}, {}, 400, -32600),
        ({"id": True, "method": "ping"}, {}, 400, -32600),
        ({"id": [1], "method": "ping"}, {}, 400, -32600),
        ({"id": 1, "method": "ping"}, {"mcp-protocol-version": "1999-01-01"}, 400, -32600),
        (b"{", {}, 400, -32700),
    ],
)
async def test_wrong_messages_get_errors_of_json_rpc(
    make_app: MakeApp, body: Any, headers: dict[str, str], status: int, code: int
) -> None:
    app, _ = await make_app()
    response = await post(app, PATH, body, **headers)
    assert (response.status, (await whole(response))["error"]["code"]) == (status, code)


async def test_other_methods_of_http_and_missing_keys_are_refused_in_the_same_form(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="sesame")
    for response, status in ((await get(app, PATH), 405), (await post(app, PATH, {"id": 1, "method": "ping"}), 401)):
        assert (response.status, (await whole(response))["error"]["code"]) == (status, -32600)
    allowed = await post(app, PATH, {"id": 1, "method": "ping"}, authorization="Bearer sesame")
    assert (await whole(allowed)) == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_chat_answers_a_prompt(make_app: MakeApp) -> None:
    app, engine = await make_app(say("Hi!"))
    [tool] = (await sent(app, "tools/list"))["tools"]
    schema = tool["inputSchema"]
    assert (tool["name"], schema["required"], schema["properties"]["model"]["enum"]) == ("chat", ["prompt"], ["m"])
    result = await called(app, "chat", prompt="Hello", system="Be short.", temperature=0.5, max_tokens=9, model=None)
    assert result == {"content": [{"type": "text", "text": "Hi!"}]}
    same = await ask(app, "/v1/chat/completions", model="m", temperature=0.5, max_tokens=9, messages=[
        {"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"},
    ])  # fmt: skip
    assert same["choices"][0]["message"]["content"] == "Hi!"
    (first, *_), (second, *_) = engine.submitted
    assert first == second


async def test_limits_and_models_of_a_key_are_those_of_the_endpoint(make_app: MakeApp, tmp_path: Path) -> None:
    keys = {"eva": {"rpm_limit": 2}, "other": {"models": ["another"]}, "root": {"roles": ["admin"]}}
    app, engine = await make_app(lambda *_: say("Hi!"), api_key_file=written(tmp_path, keys))
    call = {"id": 1, "method": "tools/call", "params": {"name": "chat", "arguments": ASKED}}
    found = [await post(app, PATH, call, authorization="Bearer sk-eva") for _ in range(3)]
    for response in found:
        await response.aclose()
    assert [response.status for response in found] == [200, 200, 429]  # a call is one request
    assert [client for client, *_ in engine.origins] == ["key:eva", "key:eva"]
    listed = await post(app, PATH, {"id": 1, "method": "tools/list"}, authorization="Bearer sk-other")
    assert (await whole(listed))["result"] == {"tools": []}
    assert (await post(app, PATH, call, authorization="Bearer sk-root")).status == 403


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "prompt is required"),
        ({"prompt": "a", "stream": True}, "unknown argument 'stream'"),
        ({"prompt": "a", "temperature": -1}, "temperature out of range"),
        ({"prompt": "a", "model": "other"}, "other"),
    ],
)
async def test_errors_of_a_call_are_results(make_app: MakeApp, arguments: Any, text: str) -> None:
    app, _ = await make_app()
    assert text in await failed(app, "chat", **arguments)
    assert "must be an object" in (await sent(app, "tools/call", name="chat", arguments=[1]))["content"][0]["text"]


async def test_a_failure_has_the_form_of_json_rpc(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda prompt, sampling: 1 / 0)
    response = await post(app, PATH, {"id": 1, "method": "tools/call", "params": {"name": "chat", "arguments": ASKED}})
    assert (response.status, (await whole(response))["error"]["code"]) == (500, -32603)


async def test_embed_and_rerank_return_structured_content(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    assert [tool["name"] for tool in (await sent(app, "tools/list"))["tools"]] == ["embed", "rerank"]
    vectors = await called(app, "embed", input=["a", "b"])
    assert vectors["structuredContent"]["embeddings"] == await ask(app, "/embed", inputs=["a", "b"])
    ranks = (await called(app, "rerank", query="a", documents=["b", "a"], top_n=1))["structuredContent"]
    assert ranks["results"] == (await ask(app, "/rerank", query="a", documents=["b", "a"], top_n=1))["results"]


async def test_speech_becomes_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_Process", InlineDecoding)
    async with apps_of(speech_model) as make:
        app, _ = await make(HELLO)
        audio = base64.b64encode(plain_wav(1.5)).decode()
        result = await called(app, "transcribe", audio=audio, language="en")
        assert result["content"][0]["text"] == "Three one four."
        assert await failed(app, "transcribe", audio="#") == "audio is not base64"
        assert await failed(app, "transcribe", audio=[audio]) == "audio is not a string"


@pytest.mark.parametrize(
    ("make_model", "name", "arguments", "kind", "begin"),
    [
        (fake_voice, "speak", {"input": "Hello."}, "audio/wav", b"RIFF"),
        (fake_image_model, "generate_image", {"prompt": "a cat", "size": "64x64"}, "image/png", b"\x89PNG"),
    ],
)
async def test_files_are_content(
    make_model: Callable[..., Awaitable[Any]], name: str, arguments: Any, kind: str, begin: bytes
) -> None:
    async with apps_of(make_model) as make:
        app, _ = await make()
        [content] = (await called(app, name, **arguments))["content"]
        assert content["mimeType"] == kind
        assert base64.b64decode(content["data"]).startswith(begin)


class Transport(httpx2.AsyncBaseTransport):
    """Passes the requests of a client to an app."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        response = await self._app.handle(Request(request.method, request.url.path, "", headers, await request.aread()))
        body = response.body
        assert isinstance(body, bytes)
        await response.aclose()
        return httpx2.Response(response.status, headers=response.headers, content=body)


@pytest.mark.slow
async def test_the_official_client_calls_tools(make_app: MakeApp) -> None:
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.exceptions import MCPError

    app, _ = await make_app(say("Hi!"))
    http = httpx2.AsyncClient(transport=Transport(app))
    async with http, Client(streamable_http_client("http://localhost/mcp", http_client=http)) as client:
        assert client.protocol_version == VERSIONS[0]
        assert [tool.name for tool in (await client.list_tools()).tools] == ["chat"]
        result = await client.call_tool("chat", {"prompt": "Hello"})
        assert (result.is_error, [part.text for part in result.content if part.type == "text"]) == (False, ["Hi!"])
        assert (await client.call_tool("chat", {"prompt": "Hello", "temperature": 9})).is_error
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool("paint", {})
