"""Requests without a prompt, and keep_alive, load and unload models."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.features.deployment.model_cache import ModelCache
from tests.api.conftest import MakeApp, MakePooling, get, post, whole
from tests.fakes import say

EMPTY: list[tuple[str, Any]] = [
    ("/api/chat", {}),
    ("/api/chat", {"messages": []}),
    ("/api/generate", {}),
    ("/api/generate", {"prompt": "", "stream": True}),
]


def on_demand(app: App, *, permanent: bool = False, idle_timeout_s: float = 0.0) -> tuple[Any, ModelCache]:
    """Returns the only model, which requests load, and the cache that decides when."""
    [model] = app.registry.models.values()
    model_cache = ModelCache()
    model_cache.add(model, permanent=permanent, idle_timeout_s=idle_timeout_s)
    model.on_demand = True
    return model, model_cache


@pytest.mark.parametrize(("path", "body"), EMPTY)
async def test_a_request_without_a_prompt_loads_and_unloads(make_app: MakeApp, path: str, body: Any) -> None:
    app, engine = await make_app(say("x"))
    model, model_cache = on_demand(app)

    async def done(**fields: Any) -> str:
        found = await whole(await post(app, path, {"model": "m:latest", **body, **fields}))
        said = found["message"]["content"] if path == "/api/chat" else found["response"]
        assert (found["model"], found["done"], said) == ("m:latest", True, "")
        return str(found["done_reason"])

    assert (await done(keep_alive=0), model.loaded) == ("unload", False)
    assert (await done(keep_alive="0s"), model.loaded) == ("unload", False)
    assert (await done(), model.loaded) == ("load", True)
    assert (await done(keep_alive=-1), model.loaded) == ("load", True)
    assert engine.submitted == []
    await model_cache.stop()


async def test_a_model_that_the_operator_keeps_is_not_unloaded(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    model, model_cache = on_demand(app, permanent=True)
    response = await post(app, "/api/generate", {"model": "m", "keep_alive": 0})
    assert (await whole(response))["done_reason"] == "load"
    assert "keep_alive has no effect" in dict(response.headers)["Warning"]
    assert model.loaded
    await model_cache.stop()


async def test_ps_says_when_a_model_leaves(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"))
    _, model_cache = on_demand(app, idle_timeout_s=300)

    async def left_s(**fields: Any) -> float:
        body = {"model": "m", "prompt": "hi", "stream": False, **fields}
        await whole(await post(app, "/api/generate", body))
        [running] = (await whole(await get(app, "/api/ps")))["models"]
        return (datetime.fromisoformat(running["expires_at"][:-1] + "+00:00") - datetime.now(timezone.utc)).seconds

    assert 100 < await left_s() <= 300
    assert 1800 < await left_s(keep_alive="1h") <= 3600
    assert (await whole(await post(app, "/api/generate", {"model": "m", "keep_alive": 0})))["done_reason"] == "unload"
    assert (await whole(await get(app, "/api/ps")))["models"] == []
    await model_cache.stop()


async def test_an_embedding_model_is_kept_too(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    model, model_cache = on_demand(app, idle_timeout_s=300)
    for keep, wanted in (("10m", 600), (None, 300)):
        await whole(await post(app, "/api/embed", {"model": "e", "input": "a", "keep_alive": keep}))
        assert wanted - 250 < model.residence.seconds_left <= wanted
    assert (await post(app, "/api/generate", {"model": "e"})).status == 400
    assert (await whole(await post(app, "/api/generate", {"model": "e", "keep_alive": 0})))["done_reason"] == "unload"
    assert not model.loaded
    await model_cache.stop()
