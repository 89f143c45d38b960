"""A body without `model` is served if one model generates text; with several models it is an error 400."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from tests.api.conftest import MakeApp, events, post, whole
from tests.fakes import FakeEngine, say
from tests.features.pooling.fakes import fake_model

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES = {
    "chat/completions": CHAT,
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
    "messages": {**CHAT, "max_tokens": 5},
    "messages/count_tokens": CHAT,
}


@pytest.mark.parametrize("base", ["/v1", "/v3"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": ""}], ids=["absent", "null", "empty"])
async def test_the_only_text_model_serves_a_body_that_names_none(
    make_app: MakeApp, base: str, path: str, named: dict[str, Any]
) -> None:
    app, _ = await make_app(say("x"))
    pooling, _ = await fake_model()
    app.registry.install(pooling)  # a model that generates nothing is not a candidate
    response = await post(app, f"{base}/{path}", {**BODIES[path], **named})
    body = await whole(response)
    assert response.status == 200, body
    assert body.get("model", "m") == "m"


@pytest.mark.parametrize("path", BODIES)
async def test_of_several_text_models_one_must_be_named(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(say("x"))
    app.registry.install(TextModel(Config(fake_engine=True, model_name="other"), FakeEngine([])))  # type: ignore[arg-type]
    response = await post(app, f"/v3/{path}", BODIES[path])
    assert response.status == 400
    assert "model field is missing in JSON body" in (await whole(response))["error"]["message"]


async def test_a_stream_says_which_model_it_is(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    found = await events(await post(app, "/v1/chat/completions", {**CHAT, "stream": True}))
    assert {event["model"] for event in found[:-1]} == {"m"}
