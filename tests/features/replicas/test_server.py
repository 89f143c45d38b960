"""A server with two replicas: kills, changes of the model's state, and the requests to each process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import DEMO_MODEL
from lean_ovms.features.replicas.pool import EnginePool
from lean_ovms.features.scripted_engine.child.script import Script
from lean_ovms.types import Request, Response
from tests.e2e.conftest import ANY_MODEL, EXACT, LocalServer, local_server, until
from tests.features.named_keys.files import written
from tests.makers.make_lora import make as make_lora
from tests.streams import pieces

pytestmark = pytest.mark.model


def engine_of(local: LocalServer) -> EnginePool:
    engine: Any = local.model.engine
    assert isinstance(engine, EnginePool)
    return engine


async def ask(local: LocalServer, path: str, body: Any = None, method: str = "POST", client: str = "test") -> Response:
    """Sends a request from an address, with a key that has the same name."""
    path, _, query = path.partition("?")
    data = b"" if body is None else json.dumps(body).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(data)),
        "authorization": f"Bearer sk-{client}",
    }
    return await local.app.handle(Request(method, path, query, headers, data, client))


async def events(response: Response) -> list[Any]:
    """Yields the events of a stream as it is read to its end."""
    text = b"".join([piece async for piece in pieces(response.body)]).decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return list(map(json.loads, lines))


def completion(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **fields}


async def metrics(local: LocalServer) -> dict[str, float]:
    body: Any = (await ask(local, "/metrics", method="GET")).body
    rows = [line.rpartition(" ") for line in body.decode().splitlines() if line[0] != "#"]
    return {name.replace('model_name="demo"', "demo"): float(value) for name, _, value in rows}


SLOW = json.dumps({"step_s": 0.005})
"""A script of the engine with which streams take time."""


async def test_limits_hold_for_the_model_and_not_for_each_replica() -> None:
    options: dict[str, Any] = {"model_name": "demo", "plugin_config": SLOW, "max_num_seqs": 1, "max_queued_requests": 4}
    async with local_server(fake_engine=True, engine_replicas=2, **options) as local:
        long = completion("x", stream=True, max_tokens=4000)
        answers = [await ask(local, "/v1/completions", long) for _ in range(8)]
        assert [answer.status for answer in answers] == [200] * 6 + [429] * 2
        assert [one.in_flight for one in engine_of(local).replicas] == [3, 3]
        assert json.loads((await ask(local, "/load", method="GET")).body) == {"server_load": 6}
        for answer in answers:
            await answer.aclose()


async def test_a_client_with_many_requests_delays_another_by_what_runs_alone() -> None:
    """Each replica computes one request; those of the first client wait in both. The second client's request is the
    next."""
    options: dict[str, Any] = {"model_name": "demo", "plugin_config": SLOW, "max_num_seqs": 2}
    async with local_server(fake_engine=True, engine_replicas=2, **options) as local:
        engine = engine_of(local)
        many: list[Response] = []
        for number in range(8):
            body = completion(f"{number % 2}" * 99, stream=True, max_tokens=4000)
            many.append(await ask(local, "/v1/completions", body, client="many"))
        assert [one.in_flight for one in engine.replicas] == [4, 4]
        one_more = [asyncio.create_task(ask(local, "/v1/completions", completion("x"), client=name)) for name in "ab"]
        await until(lambda: [one.in_flight for one in engine.replicas] == [5, 5])
        for running in many[:2]:
            await running.aclose()
        assert [answer.status for answer in await asyncio.gather(*one_more)] == [200, 200]
        assert [one.in_flight for one in engine.replicas] == [3, 3]
        for answer in many[2:]:
            await answer.aclose()


async def test_what_one_client_may_have_waiting_or_running_holds_for_the_model(tmp_path: Path) -> None:
    options: dict[str, Any] = {"plugin_config": SLOW, "max_num_seqs": 2, "max_queued_requests_per_client": 4}
    keys = written(tmp_path, {"many": {}, "three": {"max_parallel_requests": 3}, "other": {}})
    async with local_server(
        fake_engine=True, engine_replicas=2, model_name="demo", api_key_file=keys, **options
    ) as local:
        long = completion("x", stream=True, max_tokens=4000)
        answers = []
        for client, accepted in (("many", 6), ("three", 3), ("other", 4)):
            answers += [await ask(local, "/v1/completions", long, client=client) for _ in range(accepted + 1)]
            assert [one.status for one in answers[-accepted - 1 :]] == [200] * accepted + [429], client
        for answer in answers:
            await answer.aclose()


async def test_conversations_find_their_earlier_turns_without_any_header() -> None:
    async def conversation(letter: str) -> None:
        messages, before = [{"role": "system", "content": letter * 200}], 0
        for turn in range(6):
            messages.append({"role": "user", "content": f"{turn}" * 100})
            body = {"model": "demo", "messages": messages, "max_tokens": 8, "temperature": 0}
            found = json.loads((await ask(local, "/v1/chat/completions", body)).body)
            usage = found["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] > before - 2 * Script().block_size
            before = usage["prompt_tokens"]
            messages.append(found["choices"][0]["message"])

    options: dict[str, Any] = {"model_name": "demo", "plugin_config": SLOW}
    async with local_server(fake_engine=True, engine_replicas=2, **options) as local:
        await asyncio.gather(*map(conversation, "abcdefgh"))
        await local.model.stats()
        steps = [stats.steps for stats in engine_of(local).latest if stats is not None]
        assert min(steps) > max(steps) / 4


async def test_a_killed_replica_fails_its_streams_honestly_and_others_go_on() -> None:
    options: dict[str, Any] = {"model_name": "demo", "plugin_config": SLOW, "metrics_enable": True}
    async with local_server(fake_engine=True, engine_replicas=2, **options) as local:
        engine = engine_of(local)
        long = [completion(letter * 99, stream=True, max_tokens=400) for letter in "ab"]
        streams = [asyncio.create_task(events(await ask(local, "/v1/completions", body))) for body in long]
        await until(lambda: [one.in_flight for one in engine.replicas] == [1, 1])
        counted = await metrics(local)
        assert [counted[f'lean_ovms_replica_running{{demo,replica="{number}"}}'] for number in (0, 1)] == [1, 1]
        assert counted["vllm:num_requests_running{demo}"] == 2

        os.kill(engine.pids[0], signal.SIGKILL)
        killed, lived = await asyncio.gather(*streams)
        assert killed[-1]["error"]["code"] == "engine_restarted"
        assert lived[-1]["choices"][0]["finish_reason"] == "length"
        assert local.model.ready
        assert (await ask(local, "/v1/completions", completion("a" * 99))).status == 200

        await until(lambda: engine.replicas[0].state == "ready")
        counted = await metrics(local)
        found = [counted[f'lean_ovms_replica_restarts_total{{demo,replica="{number}"}}'] for number in (0, 1)]
        assert (found, counted["lean_ovms_engine_restarts_total{demo}"]) == ([1, 0], 1)
        assert counted['lean_ovms_replica_up{demo,replica="0"}'] == 1


async def test_what_changes_a_model_reaches_every_replica(tmp_path: Path) -> None:
    prewarmed, disk = "It is said that " * 20, tmp_path / "disk"
    (tmp_path / "prewarm.json").write_text(json.dumps({"prompt": prewarmed}))
    options: dict[str, Any] = {"prefix_cache_path": str(disk), "prewarm": str(tmp_path / "prewarm.json")}
    options |= {**ANY_MODEL, "plugin_config": EXACT, "slot_save_path": str(tmp_path / "slots")}
    async with local_server(engine_replicas=2, allow_runtime_lora=True, **options) as local:
        engine = engine_of(local)

        async def answers(model: str = "demo") -> tuple[set[str], list[int]]:
            """Asks each replica; returns what they answer, and how many tokens each had in its cache."""
            texts, cached = set(), []
            for number in range(engine_of(local).processes):
                with engine_of(local).only(number):
                    response = await ask(local, "/v1/completions", completion(prewarmed, model=model))
                found = json.loads(response.body)
                texts.add(found["choices"][0]["text"])
                cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
            return texts, cached

        own, cached = await answers()
        assert (len(own), min(cached) > 0) == (1, True)

        path = make_lora(tmp_path / "lora", model=Path(ANY_MODEL["model_path"]))
        adapter = {"lora_name": "x", "lora_path": str(path)}
        assert (await ask(local, "/v1/load_lora_adapter", adapter)).status == 200
        adapted, _ = await answers("x")
        assert len(adapted) == 1
        assert adapted != own
        assert (await ask(local, "/v1/unload_lora_adapter", {"lora_name": "x"})).status == 200
        assert (await ask(local, "/v1/completions", completion("x", model="x"))).status == 404

        saved = json.loads((await ask(local, "/v1/prefix_cache/save")).body)["data"][0]
        found = json.loads((await ask(local, "/v1/prefix_cache/restore")).body)["data"][0]
        assert found["blocks"] >= saved["blocks"] > 0
        assert (await ask(local, "/reset_prefix_cache?reset_external=true")).status == 200
        assert (await answers())[1] == [0, 0]

        file, slot = {"filename": "a"}, completion(prewarmed, id_slot=3)
        assert (await ask(local, "/reset_prefix_cache?reset_external=true")).status == 200
        with engine.only(1):
            assert (await ask(local, "/v1/completions", slot)).status == 200
        saved = json.loads((await ask(local, "/slots/3?action=save", file)).body)
        assert saved["n_saved"] > 0
        assert (await ask(local, "/reset_prefix_cache?reset_external=true")).status == 200
        restored = json.loads((await ask(local, "/slots/5?action=restore", file)).body)
        assert restored["n_restored"] == saved["n_saved"]
        assert (await answers())[1] == cached, "from the file, in both"
        with engine.only(0):
            assert (await ask(local, "/v1/completions", completion("another", id_slot=5))).status == 200
        assert json.loads((await ask(local, "/slots/5?action=save", {"filename": "b"})).body)["n_saved"] == 0

        assert (await ask(local, "/v1/prefix_cache/save")).status == 200
        os.kill(engine.pids[1], signal.SIGKILL)
        await until(lambda: engine.restarts == 1 and engine.replicas[1].state == "ready")
        assert await answers() == (own, cached), "from the blocks of both on disk"

        before = engine.pids
        assert (await ask(local, "/sleep")).status == 200
        assert engine_of(local).pids == []
        assert (await ask(local, "/wake_up")).status == 200
        assert (len(engine_of(local).pids), {*engine_of(local).pids} & {*before}) == (2, set())
        assert (await answers())[0] == own


async def test_a_reload_changes_how_many_there_are_and_running_requests_end_as_they_would(tmp_path: Path) -> None:
    """Two models of the same file, each with replicas. Then all replicas of the other model are killed."""

    def configure(first: int) -> None:
        models = {"a": {"engine_replicas": first}, "b": {"engine_replicas": 2}}
        rows = [{"config": {"name": name, "base_path": str(DEMO_MODEL), **given}} for name, given in models.items()]
        (tmp_path / "config.json").write_text(json.dumps({"model_config_list": rows}))

    configure(2)
    file = str(tmp_path / "config.json")
    async with local_server(fake_engine=True, config_path=file, plugin_config=SLOW) as local:
        a, b = (local.app.registry.get(name) for name in "ab")
        assert [model.engine.processes for model in (a, b)] == [2, 2]
        running = await ask(local, "/v1/completions", completion("x", model="a", stream=True, max_tokens=100))
        configure(1)
        assert (await ask(local, "/v1/config/reload")).status == 200
        assert (await events(running))[-1]["choices"][0]["finish_reason"] == "length"
        assert local.app.registry.get("a").engine.processes == 1
        assert (await ask(local, "/v1/completions", completion("x", model="a"))).status == 200

        assert local.app.registry.get("b") is b
        long = [completion(letter * 99, model="b", stream=True, max_tokens=4000) for letter in "xy"]
        streams = [asyncio.create_task(events(await ask(local, "/v1/completions", body))) for body in long]
        await until(lambda: [one.in_flight for one in b.engine.replicas] == [1, 1])
        for pid in b.engine.pids:
            os.kill(pid, signal.SIGKILL)
        for stream in streams:
            assert (await stream)[-1]["error"]["code"] == "engine_restarted"
        assert not b.ready
        refused = await ask(local, "/v1/completions", completion("x", model="b"))
        assert (refused.status, "Retry-After" in dict(refused.headers)) == (503, True)
        assert (await ask(local, "/v1/completions", completion("x", model="a"))).status == 200
        await until(lambda: [one.state for one in b.engine.replicas] == ["ready", "ready"])
        assert (await ask(local, "/v1/completions", completion("x", model="b"))).status == 200
