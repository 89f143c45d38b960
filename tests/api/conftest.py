"""An app with a fake engine, and requests like those of clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.api.response import whole_body
from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import close
from lean_ovms.text.template import chat_template
from lean_ovms.types import Request, Response
from lean_ovms.types.engine import CAPABILITIES
from tests.fakes import FakeEngine, Script
from tests.features.pooling.fakes import FakePoolingEngine, fake_model
from tests.streams import pieces

CODER = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3, "<|endoftext|>": 4, "<|fim_pad|>": 5}
"""The special tokens of a model that fills in the middle of code."""
MakeApp = Callable[..., Awaitable[tuple[App, FakeEngine]]]
MakePooling = Callable[..., Awaitable[tuple[App, FakePoolingEngine]]]


@pytest.fixture(scope="package", autouse=True)
def made_once() -> Iterator[None]:
    """Compiles chat templates only once, because the thousands of apps in these tests have the same ones."""
    compiled, kept = chat_template._CompiledTemplate, {}

    def template(env: Any, source: str, tokens: dict[str, str], read: partial[Any]) -> Any:
        how = (read.func, *sorted(read.keywords.items()))
        key = (source, *sorted(tokens.items()), *how, *getattr(env.loader, "searchpath", ()))
        if key not in kept:
            kept[key] = compiled(env, source, tokens, read)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template, "_CompiledTemplate", template)
        yield


@contextlib.asynccontextmanager
async def apps_of(make_model: Callable[..., Awaitable[tuple[Any, Any]]]) -> AsyncIterator[Callable[..., Any]]:
    """Yields make(...) -> (app, engine), an app with the model that make_model returns with its engine. It is closed at
    the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(*script: Any, **options: Any) -> tuple[App, Any]:
            model, engine = await make_model(*script, **options)
            app = App(model.config, [model])
            stack.push_async_callback(close, app)
            return app, engine

        yield make


@pytest.fixture
async def make_app() -> AsyncIterator[MakeApp]:
    """Returns make_app(script, **options) -> (app, engine), loaded. Its response store is closed at the end.

    With `capable`, the engine has every capability.
    """

    async def model(script: Any = (), *, capable: bool = False, **options: Any) -> tuple[TextModel, FakeEngine]:
        config = Config(**{"fake_engine": True, "model_name": "m", "access_log": False, **options})
        engine = FakeEngine(script if callable(script) else list(script))
        if capable:
            engine.info = replace(engine.info, capabilities=sorted({*CAPABILITIES.values()}))
        model = TextModel(config, engine)  # type: ignore[arg-type]
        await model.load()
        return model, engine

    async with apps_of(model) as make:
        yield make


async def post(app: App, path: str, body: Any, **headers: str) -> Response:
    """Returns the response to a POST with this JSON body."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return await app.handle(Request("POST", path, headers=sent, body=data))


async def get(app: App, path: str, **headers: str) -> Response:
    return await app.handle(Request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}))


async def whole(response: Response) -> Any:
    """Returns the JSON of a unary response, and closes the response like a transport."""
    assert isinstance(response.body, bytes) or ("Content-Type", "application/json") in response.headers
    body = await whole_body(response)
    return orjson.loads(body) if body else None


def teach(engine: FakeEngine, vocabulary: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds these words to the tokens of the engine's tokenizer."""
    untaught = engine.encode

    async def taught(texts: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        plain = await untaught(texts, add_special_tokens, client)
        return [[vocabulary[t]] if t in vocabulary else ids for t, ids in zip(texts, plain, strict=True)]

    monkeypatch.setattr(engine, "encode", taught)


async def parts(response: Response) -> AsyncIterator[bytes]:
    assert not isinstance(response.body, bytes), response.body
    try:
        async with aclosing(pieces(response.body)) as found:
            async for part in found:
                yield part
    finally:
        await response.aclose()


async def events(response: Response) -> list[Any]:
    """Returns the data of every event of a stream; "[DONE]" is unchanged."""
    text = b"".join([part async for part in parts(response)])
    assert text.endswith(b"\n\n")
    found = []
    for block in text.removesuffix(b"\n\n").split(b"\n\n"):
        if block.startswith(b"event: "):
            name, block = block.split(b"\n", 1)
            assert orjson.loads(block.removeprefix(b"data: "))["type"] == name.removeprefix(b"event: ").decode()
        assert block.startswith((b"data: ", b":")), block
        if block.startswith(b"data: "):
            data = block.removeprefix(b"data: ")
            found.append("[DONE]" if data == b"[DONE]" else orjson.loads(data))
    return found


def warnings_of(response: Response) -> list[str]:
    """Returns the texts of a response's Warning headers, without what HTTP wants around them."""
    values = [value for name, value in response.headers if name == "Warning"]
    assert all(value.startswith('299 lean_ovms "') and value.endswith('"') for value in values)
    return [value.removeprefix('299 lean_ovms "')[:-1] for value in values]


@pytest.fixture
async def make_pooling() -> AsyncIterator[MakePooling]:
    """Returns make_pooling(task, **options) -> (app, engine), loaded. The model's name is "e"."""
    async with apps_of(fake_model) as make:
        yield make


async def ask(app: App, path: str, **body: Any) -> Any:
    """Returns the JSON of a response, and checks that its status is 200."""
    response = await post(app, path, {"model": "e", **body})
    assert response.status == 200, response.body
    return await whole(response)


async def refused(app: App, path: str, status: int = 400, **body: Any) -> tuple[str, str | None]:
    """Returns message and param of an error, and checks its status."""
    response = await post(app, path, {"model": "e", **body})
    assert response.status == status, response.body
    error = (await whole(response))["error"]
    return error["message"], error["param"]


__all__ = [
    "CODER",
    "MakeApp",
    "MakePooling",
    "Script",
    "ask",
    "events",
    "get",
    "parts",
    "post",
    "refused",
    "teach",
    "warnings_of",
    "whole",
]
