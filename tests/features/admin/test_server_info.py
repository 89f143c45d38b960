"""/server_info shows the options that are not defaults, without secrets, and the models with their load."""

from __future__ import annotations

import pytest

from lean_ovms.config import Config
from lean_ovms.features.admin.server_info import changed_options
from lean_ovms.types.engine import EngineStats
from tests.api.conftest import MakeApp, get, post, whole
from tests.fakes import say


async def test_only_changed_options_and_never_the_key(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret", metrics_enable=True, response_store="postgresql://user:word@host/db")
    assert (await get(app, "/server_info")).status == 401
    response = await get(app, "/server_info", authorization="Bearer secret")
    assert isinstance(response.body, bytes)
    assert b"secret" not in response.body
    assert b"word" not in response.body
    body = await whole(response)
    assert body["options"] == {"fake_engine": True, "model_name": "m", "access_log": False, "metrics_enable": True}
    assert body["version"]


async def test_load_with_and_without_metrics(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda _, sampling: say("a", "b", sequences=sampling.n))
    body = await whole(await get(app, "/server_info"))
    assert body["models"] == {"m": "ready"}
    assert body["engines"]["m"]["device"] == "CPU"
    assert body["load"].keys() == {"running", "waiting", "kv_cache_usage"}
    app, _ = await make_app(lambda _, sampling: say("a", "b", sequences=sampling.n), metrics_enable=True)
    done = await whole(await post(app, "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 5}))
    answer = await get(app, "/server_info")
    load = (await whole(answer))["load"]
    assert load["generation_tokens"] == done["usage"]["completion_tokens"]
    assert load["prompt_tokens"] == done["usage"]["prompt_tokens"]
    assert load["cached_tokens"] == 0
    assert sum(load["ttft"]["counts"]) == 1
    assert len(load["itl"]["counts"]) == len(load["itl"]["bounds"]) + 1
    assert isinstance(answer.body, bytes)
    assert len(answer.body) < 1500
    only = "vllm:prompt_tokens_total"
    app, _ = await make_app(metrics_enable=True, metrics_list=only)
    assert "ttft" not in (await whole(await get(app, "/server_info")))["load"]


async def test_what_the_prefix_cache_had_on_disk(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, engine = await make_app(say("a"))

    async def stats() -> EngineStats:
        return EngineStats(
            running=0, queued=0, steps=1, of_features={"lean_ovms_prefix_cache_disk_hit_tokens_total": 64}
        )

    monkeypatch.setattr(engine, "stats", stats)
    assert (await whole(await get(app, "/server_info")))["load"]["disk_tokens"] == 64


def test_paths_are_cut_to_their_last_part() -> None:
    config = Config(
        model_path="/home/someone/models/m",
        source_model="org/name",
        lora_modules="a=/srv/lora/a b=relative/b",
        plugin_config='{"CACHE_DIR": "/var/cache/x"}',
        allowed_origins="https://example.org/a",
    )
    assert changed_options(config) == {
        "model_path": "…/m", "source_model": "org/name", "lora_modules": "a=…/a b=relative/b",
        "plugin_config": '{"CACHE_DIR": "…/x"}', "allowed_origins": "https://example.org/a",
    }  # fmt: skip
