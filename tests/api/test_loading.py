"""A model that is still loading: every endpoint says so, because nothing is known of the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import close
from lean_ovms.types.engine import ModelInfo
from tests.api.conftest import get, post, whole
from tests.fakes import FakeEngine, say

BODIES: dict[str, Any] = {
    "/v3/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v3/completions": {"prompt": "hi"},
    "/v3/responses": {"input": "hi"},
    "/v3/responses/input_tokens": {"input": "hi"},
    "/v3/tokenize": {"text": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/v1/tokenize": {"messages": [{"role": "user", "content": "hi"}]},
    "/v3/detokenize": {"tokens": [65]},
}


class Slow(FakeEngine):
    """A model that is ready when told so, and has no properties before."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, sampling: say("a", sequences=sampling.n))
        self.known, self.go = self.info, asyncio.Event()
        del self.info

    async def start(self) -> ModelInfo:
        await self.go.wait()
        self.info = self.known
        return await super().start()


@pytest.fixture
async def loading() -> AsyncIterator[tuple[App, Slow, asyncio.Task[None]]]:
    config = Config(fake_engine=True, model_name="m", access_log=False)
    engine = Slow()
    model = TextModel(config, engine)  # type: ignore[arg-type]
    app = App(config, [model])
    await app.open()
    task = asyncio.create_task(model.load())
    await asyncio.sleep(0)
    yield app, engine, task
    engine.go.set()
    await task
    await close(app)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_503(loading: tuple[App, Slow, asyncio.Task[None]], path: str, stream: bool) -> None:
    app, engine, task = loading
    response = await post(app, path, {"model": "m", "stream": stream, **BODIES[path]})
    assert response.status == 503, await whole(response)
    assert (await whole(response))["error"]["type"] == "server_error"
    engine.go.set()
    await task
    response = await post(app, path, {"model": "m", **BODIES[path]})
    assert response.status == 200, await whole(response)


async def test_it_is_not_listed_and_not_ready(loading: tuple[App, Slow, asyncio.Task[None]]) -> None:
    app, engine, task = loading
    assert (await whole(await get(app, "/v3/models")))["data"] == []
    assert (await get(app, "/v3/models/m")).status == 404
    assert (await get(app, "/tokenizer_info")).status == 503
    assert (await get(app, "/health")).status == 503
    assert (await get(app, "/v2/health/live")).status == 200
    assert "LOADING" in str(await whole(await get(app, "/v1/config")))
    engine.go.set()
    await task
    assert (await get(app, "/health")).status == 200


async def test_an_engine_that_is_ready_does_not_make_a_ready_model(loading: tuple[App, Slow, Any]) -> None:
    app, engine, _ = loading
    engine.info, engine.state = engine.known, "ready"
    assert app.registry.models["m"].state == "loading"
    assert (await get(app, "/health")).status == 503
    assert (await post(app, "/v3/completions", {"model": "m", "prompt": "hi"})).status == 503
