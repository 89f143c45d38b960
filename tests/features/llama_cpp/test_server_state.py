"""/props, /slots and /lora-adapters, with which llama.cpp's front ends ask about the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from lean_ovms.repository.model_dir import ModelDir
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, MakePooling, get, post, whole
from tests.fakes import FakeEngine

PATHS = ["/props", "/slots", "/lora-adapters"]


async def test_props(make_app: MakeApp) -> None:
    app, engine = await make_app(max_num_seqs=3, max_tokens_limit=50)
    body = await whole(await get(app, "/props"))
    settings = body.pop("default_generation_settings")
    assert settings["n_ctx"] == 1000
    wanted = {"seed": 4294967295, "temperature": 1.0, "top_k": 40, "n_predict": 50, "repeat_penalty": 1.0}
    assert {name: settings["params"][name] for name in wanted} == wanted
    assert body.pop("build_info").startswith("lean_ovms-")
    assert body == {
        "total_slots": 3,
        "model_alias": "m",
        "model_path": "m",
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": False,
        "ui": True,
        "chat_template": "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
        "bos_token": "",
        "eos_token": "<eos>",
        "is_sleeping": False,
    }
    model = app.registry.get("m", TextModel)
    engine.info = model._info = replace(engine.info, audio=True)
    assert (await whole(await get(app, "/props")))["modalities"] == {"vision": False, "video": False, "audio": True}
    for seed, shown in ((42, 42), (-1, 4294967295)):
        app.registry.get("m", TextModel).directory = ModelDir(generation_config={"seed": seed})
        settings = (await whole(await get(app, "/props")))["default_generation_settings"]
        assert settings["params"]["seed"] == shown
    app, _ = await make_app(without="slots")
    assert (await whole(await get(app, "/props")))["endpoint_slots"] is False


async def test_no_path_is_in_them(make_app: MakeApp, tmp_path: Path) -> None:
    app, _ = await make_app(model_path=str(tmp_path), api_key="secret")
    for path in PATHS:
        assert (await get(app, path)).status == 401
        response = await get(app, path, authorization="Bearer secret")
        assert response.status == 200
        assert isinstance(response.body, bytes)
        assert str(tmp_path).encode() not in response.body


async def test_props_of_an_embedding_model(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    body = await whole(await get(app, "/props"))
    assert (body["model_alias"], body["chat_template"]) == ("e", "")
    assert body["default_generation_settings"]["params"] is None


async def query(app: Any, path: str, text: str) -> Any:
    response = await app.handle(Request("GET", path, text))
    return response.status, await whole(response)


async def test_several_models_are_a_router(make_app: MakeApp) -> None:
    app, _ = await make_app()
    app.registry.install(TextModel(Config(fake_engine=True, model_name="other"), FakeEngine([])))  # type: ignore[arg-type]
    status, body = await query(app, "/props", "")
    assert (status, body["role"]) == (200, "router")
    assert (await query(app, "/props", "model=m"))[1]["model_alias"] == "m"
    for path in PATHS:
        assert (await query(app, path, "model=none"))[0] == 404
    assert (await query(app, "/slots", ""))[0] == 400


@pytest.mark.parametrize(("running", "status"), [(0, 200), (2, 200), (3, 503), (9, 503)])
async def test_slots(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, running: int, status: int) -> None:
    app, engine = await make_app(max_num_seqs=3)
    stats = replace(await engine.stats(), running=running)

    async def fixed() -> Any:
        return stats

    monkeypatch.setattr(engine, "stats", fixed)
    slots = await whole(await get(app, "/slots"))
    assert [slot.pop("is_processing") for slot in slots] == [i < running for i in range(3)]
    assert slots == [{"id": i, "n_ctx": 1000, "speculative": False} for i in range(3)]
    assert (await query(app, "/slots", "fail_on_no_slot=1"))[0] == status


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/chat/completions/input_tokens"])
async def test_paths_without_a_prefix(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(lambda *_: [[(0, "x", "stop")]])
    given = {"input": "a"} if path == "/responses" else {"messages": [{"role": "user", "content": "a"}]}
    body, prefixed = [await whole(await post(app, base + path, given)) for base in ("", "/v1")]
    assert body.get("error") is None
    assert body.keys() == prefixed.keys()
    if path.endswith("input_tokens"):
        assert body == {"object": "response.input_tokens", "input_tokens": len("user:a;")}
