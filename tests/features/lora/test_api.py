"""Adapters that are loaded by requests, and metrics of adapters."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from lean_ovms.features.lora.model import LoraSet
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, post, whole
from tests.features.metrics.test_api import CHAT, make, samples

LOAD = "/v1/load_lora_adapter"
NAMES = ["../x", "x" * 100_000]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *(({"lora_name": name, "lora_path": "p"}, "lora_name") for name in NAMES),
        ({"lora_name": "a", "lora_path": "p\n"}, "lora_path"),
        ({"lora_name": "a", "lora_path": "p" * 5000}, "lora_path"),
        ({"lora_name": ["a"], "lora_path": "p"}, "lora_name"),
        ({"lora_name": "a", "lora_path": "p", "alpha": "1"}, "alpha"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_names_and_paths_are_checked_before_anything_is_read(
    body: dict[str, object], param: str, make_app: MakeApp
) -> None:
    app, _ = await make_app(allow_runtime_lora=True)
    response = await post(app, LOAD, body)
    error = (await whole(response))["error"]
    assert (response.status, error["param"]) == (400, param)
    assert len(error["message"]) < 1000
    assert app.registry.get("m").adapters.models == {}
    assert (await post(app, LOAD, {"lora_name": "org/a b", "lora_path": "p"})).status == 200


async def test_of_two_requests_at_once_for_one_name_only_one_adds_its_adapter(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = await make_app(allow_runtime_lora=True)
    monkeypatch.setattr(LoraSet, "_check", lambda *_: asyncio.sleep(0.01))
    answers = await asyncio.gather(*(post(app, LOAD, {"lora_name": "a", "lora_path": path}) for path in "pq"))
    assert sorted(answer.status for answer in answers) == [200, 400]
    assert (await post(app, LOAD, {"lora_name": "a", "lora_path": "q", "load_inplace": True})).status == 200


async def test_nothing_is_left_of_an_adapter_whose_request_is_cancelled(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = await make_app(allow_runtime_lora=True)
    adapters = app.registry.get("m").adapters
    assert isinstance(adapters, LoraSet)
    opening = asyncio.Event()

    async def begin(_: object) -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(TextModel, "open", begin)
    loading = asyncio.create_task(post(app, LOAD, {"lora_name": "a", "lora_path": "p"}))
    await opening.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert (adapters.models, adapters._model_cache._members) == ({}, [])


async def test_adapters_with_requests_are_shown_as_by_vllm(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modules = " ".join(f"{name}={tmp_path}" for name in "xyzw")
    app, _ = await make(make_app, "a", lora_modules=modules, max_loras=3)
    monkeypatch.setattr(TextModel, "waiting", property(lambda model: {"y": 1, "z": 1}.get(model.name, 0)))
    for name in "xyzz":  # one request of z runs, another waits
        app.services.records.start(Request("POST", CHAT)).model = name
    [(labels, value)] = await samples(app, "vllm:lora_requests_info")
    assert labels == {
        "model_name": "m",
        "max_lora": "3",
        "running_lora_adapters": "x,z",
        "waiting_lora_adapters": "y,z",
    }
    assert value == pytest.approx(time.time(), abs=3600)


async def test_a_model_without_adapters_has_no_series_of_them(make_app: MakeApp) -> None:
    app, _ = await make(make_app, "a")
    assert await samples(app, "vllm:lora_requests_info") == []
