"""The prompts of --prewarm are computed like requests before the model is ready; POST /prewarm adds one."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, StartError, WrongOptions
from lean_ovms.features.prewarm import file as prewarm_file
from lean_ovms.features.prewarm.api import Prewarmer, preparation
from lean_ovms.models.text_model import TextModel
from lean_ovms.server.run import build, close
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import FakeEngine, say

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}
TEXT = {"prompt": ["one", "two"], "cache_salt": "s", "temperature": 1.0}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prewarm.json"
    path.write_text(json.dumps([CHAT, TEXT]))
    return path


async def test_prompts_are_computed_at_each_load_before_the_model_is_ready(file: Path) -> None:
    states = []

    def script(prompt: Any, sampling: Any) -> Any:
        states.append((model.loaded, model.state))
        return say("a")

    engine = FakeEngine(script)
    app = build(
        Config(fake_engine=True, model_name="m", prewarm=str(file)),
        lambda config: TextModel(config, lambda: engine),  # type: ignore[arg-type, return-value]
    )
    [model] = app.registry.models.values()
    assert app.services.manager is not None
    try:
        for _ in range(2):
            await app.services.manager.model_cache.load(model)
            assert model.state == "ready"
            assert [prompt for prompt, _ in engine.submitted] == ["user:hi;", "one", "two"]
            assert [(s.max_tokens, s.temperature, s.cache_salt) for _, s in engine.submitted][1:] == [(1, 0.0, "")] * 2
            engine.submitted.clear()
            await model.unload()
        assert set(states) == {(False, "loading")}
        assert not model.in_flight
    finally:
        await close(app)


async def test_requests_of_a_model_on_demand_wait_for_its_prompts(file: Path) -> None:
    engine = FakeEngine(lambda prompt, sampling: say("a", sequences=sampling.n))
    app = build(
        Config(fake_engine=True, model_name="m", prewarm=str(file), access_log=False),
        lambda config: TextModel(config, lambda: engine),  # type: ignore[arg-type, return-value]
    )
    [model] = app.registry.models.values()
    try:
        await model.open()
        response = await asyncio.wait_for(post(app, "/v1/chat/completions", {**CHAT, "stream": False}), 60)
        assert (response.status, (await whole(response))["choices"][0]["message"]["content"]) == (200, "a")
        assert [prompt for prompt, _ in engine.submitted] == ["user:hi;", "one", "two", "user:hi;"]
        assert [client for client, *_ in engine.origins][:3] == [""] * 3  # not the client that waits
    finally:
        await close(app)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[1]", "[0]: it is not a JSON object"),
        (json.dumps([CHAT, {}]), "[1].prompt: prompt is missing"),
        (json.dumps([CHAT, {"prompt": [1, "x"]}]), "[1].prompt"),
        (json.dumps({"messages": [{"role": "user"}, 1]}), "[0].messages[1]: "),
        (json.dumps({**CHAT, "tools": 1}), "[0].tools: "),
        (json.dumps({**CHAT, "top_p": 7}), "[0].top_p: "),
        (json.dumps({**CHAT, "messages": IMAGE}), "[0].messages[0].content[0].image_url.url: prompts with images"),
        ("[" * 100_000, "while decoding a JSON array"),  # before this message, "recursion depth" or "Stack overflow"
    ],
)
def test_a_wrong_file_is_found_without_the_model(text: str, message: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(WrongOptions) as caught:
        checked(str(file))
    assert str(caught.value).startswith(f"--prewarm {file}: ")
    assert message in str(caught.value)


def checked(name: str) -> None:
    """Checks a file as a server does at its start."""
    model = TextModel(Config(fake_engine=True, model_name="m", prewarm=name))
    found = preparation(None, model)  # type: ignore[arg-type]
    assert found is not None
    found.check()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(WrongOptions, match="--prewarm /no/file: No such file or directory"):
        checked("/no/file")


async def test_what_the_engine_refuses_is_an_error_of_the_start(file: Path, make_app: MakeApp) -> None:
    app, engine = await make_app(say("a"), prewarm=str(file))
    model = TextModel(Config(fake_engine=True, model_name="m", prewarm=str(file)), engine)  # type: ignore[arg-type]
    model.preparations.append(Prewarmer(app.services, model))
    engine.refusal = BadRequest("too long", param="messages")
    with pytest.raises(StartError) as caught:
        await model.load()
    assert str(caught.value) == f"--prewarm {file}: [0].messages: too long"
    assert (model.state, engine.state) == ("failed", "stopped")


async def test_a_body_for_another_model_is_not_computed(
    file: Path, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app, engine = await make_app(say("a"), prewarm=str(file))
    file.write_text(json.dumps([CHAT, {**CHAT, "model": "other"}]))
    [model] = app.registry.models.values()
    await Prewarmer(app.services, model).compute()  # type: ignore[arg-type]
    assert len(engine.submitted) == 1
    assert f"--prewarm {file}: [1].model: skipped, since it does not name m" in caplog.text


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
async def test_a_request_adds_a_body_to_the_file_and_computes_it(
    suffix: str, tmp_path: Path, make_app: MakeApp
) -> None:
    path = tmp_path / ("file" + suffix)
    path.write_text("[]" if suffix == ".json" else "\n")
    path.chmod(0o600)
    app, engine = await make_app(say("a"), prewarm=str(path))
    for number, body in enumerate([CHAT, CHAT, TEXT]):
        answer = await whole(await post(app, "/prewarm", body))
        assert (answer["model"], answer["saved"]) == ("m", 1 + number // 2)
    assert answer["usage"]["prompt_tokens"] == 6
    assert prewarm_file.read(str(path)) == [CHAT, TEXT]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [prompt for prompt, _ in engine.submitted] == ["user:hi;", "user:hi;", "one", "two"]


async def test_what_is_refused_is_not_added(file: Path, make_app: MakeApp) -> None:
    app, engine = await make_app(say("a"), prewarm=str(file))
    before = file.read_text()
    for body in ({}, {**CHAT, "prompt": "x"}, {**CHAT, "messages": IMAGE}, {**CHAT, "model": "x"}, [CHAT]):
        assert (await post(app, "/prewarm", body)).status in (400, 404)
    engine.refusal = BadRequest("too long")
    assert (await post(app, "/prewarm", CHAT)).status == 400
    assert file.read_text() == before
    engine.refusal = None
    file.write_text("{")
    response = await post(app, "/prewarm", CHAT)
    assert (response.status, str(file) in str(await whole(response))) == (500, False)


async def test_no_more_bodies_are_added_than_a_file_may_have(file: Path, make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"), prewarm=str(file))
    file.write_text(json.dumps([CHAT] * prewarm_file.MOST_BODIES))
    assert (await post(app, "/prewarm", TEXT)).status == 400
    assert (await post(app, "/prewarm", CHAT)).status == 200


async def test_without_the_option_nothing_is_added(make_app: MakeApp) -> None:
    app, engine = await make_app(say("a"))
    response = await post(app, "/prewarm", CHAT)
    assert (response.status, (await whole(response))["error"]["code"]) == (501, "not_supported")
    assert not engine.submitted
