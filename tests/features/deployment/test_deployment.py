"""The models of a running server are loaded in parallel, replaced without a gap, and drained once no longer
configured."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import ModelNotFound, StartError, Unavailable
from lean_ovms.features.deployment import manager as deployment_module
from lean_ovms.features.deployment.desired import DesiredState, ModelSpec
from lean_ovms.features.deployment.manager import DeploymentManager
from lean_ovms.models.model import Model
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import OutputParams, Request, SamplingParams, TextPrompt
from lean_ovms.types.engine import ModelInfo
from lean_ovms.util.files import file_stat
from tests.fakes import FakeEngine, say
from tests.streams import pieces
from tests.waiting import until

BASE = Config(fake_engine=True, config_path="config.json", access_log=False)


class SlowEngine(FakeEngine):
    """An engine that is ready when `loaded` is set. With a `fault` it does not load."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(say("a", "b"))
        self.fault = fault
        self.loaded = asyncio.Event()
        self.loaded.set()

    async def start(self) -> ModelInfo:
        await self.loaded.wait()
        if self.fault:
            self.state = "failed"
            raise StartError(self.fault, reason="It is broken.", temporary=self.fault.startswith("killed"))
        return await super().start()


class Deployment:
    """An app with a manager. want() sets the models to serve; `made` has every model that was ever created."""

    def __init__(self) -> None:
        self.specs: list[ModelSpec] = []
        self.files: dict[Path, Any] = {}
        self.made: list[TextModel] = []
        self.faults: dict[str, str] = {}
        self.slow: set[str] = set()
        self.required = False
        self.app = App(BASE, [])

    def want(self, *names: str, **options: Any) -> None:
        config = BASE.replace(config_path="", **options)
        self.specs = [ModelSpec(config=config.replace(model_name=name)) for name in names]

    def manager(self, config: Config = BASE) -> DeploymentManager:
        return DeploymentManager(config, self.app.registry, read=lambda _: self.desired(), make=self.make)

    async def loaded(self, *names: str) -> DeploymentManager:
        self.want(*names)
        manager = self.manager()
        await manager.load()
        return manager

    def desired(self) -> DesiredState:
        files = {path: file_stat(path) for path in self.files}
        return DesiredState(models=tuple(self.specs), files=files, required=self.required)

    def make(self, config: Config) -> TextModel:
        engine = SlowEngine(self.faults.get(config.model_name, ""))
        if config.model_name in self.slow:
            engine.loaded.clear()
        model = TextModel(config, engine)  # type: ignore[arg-type]
        self.made.append(model)
        return model

    def states(self) -> dict[str, str]:
        return {name: model.state for name, model in self.app.registry.models.items()}


def engine_of(model: Model) -> SlowEngine:
    assert isinstance(model.engine, SlowEngine)
    return model.engine


async def begin(model: Model) -> Any:
    return await model.start(TextPrompt("hi"), SamplingParams(max_tokens=5), OutputParams())


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


async def test_models_load_side_by_side_and_requests_wait_until_theirs_is_loaded_or_has_failed(
    deployment: Deployment,
) -> None:
    deployment.want("a", "b")
    deployment.slow, deployment.faults = {"a", "b"}, {"b": "broken"}
    loading = asyncio.create_task(deployment.manager().load())
    await asyncio.sleep(0)
    assert deployment.states() == {"a": "loading", "b": "loading"}
    good, bad = (asyncio.create_task(begin(model)) for model in deployment.made)
    ready = await deployment.app.handle(Request("GET", "/v2/health/ready"))
    assert (ready.status, good.done(), bad.done()) == (503, False, False)
    for model in deployment.made:
        engine_of(model).loaded.set()
    await loading
    assert deployment.states() == {"a": "ready", "b": "failed"}
    await (await good).aclose()
    with pytest.raises(Unavailable, match="could not be loaded"):
        await bad


async def test_a_model_that_a_request_began_to_load_must_load_at_the_start_too(deployment: Deployment) -> None:
    deployment.want("a")
    deployment.faults, deployment.required = {"a": "broken"}, True
    manager = deployment.manager()
    request = asyncio.create_task(begin(deployment.made[0]))
    await asyncio.sleep(0)
    with pytest.raises(StartError, match="broken"):
        await manager.load()
    with pytest.raises(Unavailable, match="could not be loaded"):
        await request


async def test_one_that_is_configured_wrongly_is_not_even_tried(deployment: Deployment) -> None:
    deployment.want("a", "b")
    deployment.specs[1] = replace(
        deployment.specs[1], problem=StartError("wrong graph", reason="Its graph is not valid.")
    )
    await deployment.manager().load()
    assert deployment.states() == {"a": "ready", "b": "failed"}
    assert deployment.made[1].engine.state == "loading"
    with pytest.raises(Unavailable, match="Its graph is not valid"):
        await begin(deployment.app.registry.models["b"])


@pytest.mark.parametrize("announced", [True, False])
async def test_a_model_that_is_announced_is_listed_while_it_loads(deployment: Deployment, announced: bool) -> None:
    deployment.want("a", "b")
    deployment.specs = [replace(one, announced=announced) for one in deployment.specs]
    deployment.slow, deployment.faults = {"a", "b"}, {"b": "broken"}
    loading = asyncio.create_task(deployment.manager().load())
    await asyncio.sleep(0)
    assert await listed(deployment) == (["a", "b"] if announced else [])
    one = await deployment.app.handle(Request("GET", "/v1/models/a"))
    assert one.status == (200 if announced else 404)
    for model in deployment.made:
        engine_of(model).loaded.set()
    await loading
    assert await listed(deployment) == ["a"]


async def listed(deployment: Deployment) -> list[str]:
    response = await deployment.app.handle(Request("GET", "/v1/models"))
    assert isinstance(response.body, bytes)
    return [one["id"] for one in json.loads(response.body)["data"]]


async def test_a_new_model_is_added_once_and_the_list_has_the_order_of_the_file(deployment: Deployment) -> None:
    manager = await deployment.loaded("b")
    deployment.want("a", "b", "c")
    assert await manager.reload() is True
    assert list(deployment.app.registry.models) == ["a", "b", "c"]
    assert set(deployment.states().values()) == {"ready"}
    assert await manager.reload() is False
    assert len(deployment.made) == 3


async def test_a_changed_model_is_replaced_when_its_successor_is_ready_not_before(deployment: Deployment) -> None:
    manager = await deployment.loaded("a")
    old = deployment.app.registry.models["a"]
    deployment.want("a", max_num_seqs=3)
    deployment.slow = {"a"}
    reloading = asyncio.create_task(manager.reload())
    await until(lambda: len(deployment.made) == 2)
    new = deployment.made[1]
    assert deployment.app.registry.models["a"] is old
    await (await begin(deployment.app.registry.models["a"])).aclose()
    engine_of(new).loaded.set()
    assert await reloading is True
    assert deployment.app.registry.models["a"] is new
    await until(lambda: old.engine.state == "stopped")
    await (await begin(old)).aclose()  # a request on its way to the old model
    assert len(engine_of(new).submitted) == 1
    assert await old.encode(["x"], False) == [[120]]


async def test_what_runs_on_the_old_engine_finishes_there(deployment: Deployment) -> None:
    manager = await deployment.loaded("a")
    old = deployment.app.registry.models["a"]
    generation = await begin(old)
    deployment.want("a", max_num_seqs=3)
    await manager.reload()
    await asyncio.sleep(0)
    assert old.engine.state == "ready"
    text = "".join([event.text async for deltas in pieces(generation) for d in deltas for event in d.events])
    assert text == "ab"
    await generation.aclose()
    await until(lambda: old.engine.state == "stopped")


async def test_a_successor_that_does_not_load_leaves_the_old_model_serving(deployment: Deployment) -> None:
    manager = await deployment.loaded("a", "b")
    old = dict(deployment.app.registry.models)
    deployment.want("a", "b", max_num_seqs=3)
    deployment.faults = {"a": "broken"}
    with pytest.raises(StartError, match="broken"):
        await manager.reload()
    assert deployment.app.registry.models["a"] is old["a"]
    assert deployment.app.registry.models["b"] is not old["b"]
    assert str(old["a"].failure) == "broken"
    await (await begin(old["a"])).aclose()
    deployment.faults = {}
    assert await manager.reload() is True
    assert deployment.app.registry.models["a"].failure is None
    assert deployment.app.registry.models["a"] is not old["a"]


async def test_going_back_to_what_is_served_forgets_the_failure(deployment: Deployment) -> None:
    manager = await deployment.loaded("a")
    before = deployment.specs
    deployment.want("a", max_num_seqs=3)
    deployment.faults = {"a": "broken"}
    with pytest.raises(StartError):
        await manager.reload()
    deployment.specs = before
    await manager.reload()
    assert deployment.app.registry.models["a"] is deployment.made[0]
    assert deployment.app.registry.models["a"].failure is None


async def test_a_removed_model_finishes_its_requests_and_is_not_found_any_more(deployment: Deployment) -> None:
    manager = await deployment.loaded("a", "b")
    gone = deployment.app.registry.models["b"]
    generation = await begin(gone)
    deployment.want("a")
    assert await manager.reload() is True
    assert list(deployment.app.registry.models) == ["a"]
    await asyncio.sleep(0)
    assert deployment.app.registry.unloaded == {"b": "UNLOADING"}
    with pytest.raises(ModelNotFound):
        await begin(gone)
    assert gone.engine.state == "ready"
    await generation.aclose()
    await until(lambda: deployment.app.registry.unloaded == {"b": "END"})
    assert gone.engine.state == "stopped"
    deployment.want("a", "b")
    await manager.reload()
    assert deployment.app.registry.unloaded == {}


@pytest.mark.parametrize("replaces", [False, True])
async def test_one_that_was_killed_while_it_loaded_is_tried_again_by_itself(
    replaces: bool, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds at the start and for a replacement. A model with an error of its own is not tried again."""
    monkeypatch.setattr(deployment_module, "RETRY_S", 0.01)
    manager = await deployment.loaded(*(["a"] if replaces else []))
    deployment.want("a", "b", max_num_seqs=7)
    deployment.faults = {"a": "killed by SIGKILL", "b": "no such model"}
    if replaces:
        with pytest.raises(StartError):
            await manager.reload()
    else:
        manager = deployment.manager()
        await manager.load()
        with pytest.raises(Unavailable) as error:
            deployment.app.registry.get("a").serving()
        assert error.value.retry_after_s == 10
    made = len(deployment.made)
    await until(lambda: len(deployment.made) > made + 3)  # it is tried again and again
    del deployment.faults["a"]
    await until(
        lambda: deployment.app.registry.get("a").config.max_num_seqs == 7 and deployment.app.registry.get("a").ready
    )
    await manager.stop()
    assert deployment.app.registry.get("b").failure is not None


async def test_one_that_failed_is_tried_again_at_the_next_reload(deployment: Deployment) -> None:
    deployment.want("a", "b")
    deployment.faults = {"b": "broken"}
    manager = deployment.manager()
    await manager.load()
    deployment.faults = {}
    assert await manager.reload() is True
    assert deployment.states() == {"a": "ready", "b": "ready"}
    assert deployment.app.registry.models["a"] is deployment.made[0]


async def test_a_configuration_that_cannot_be_read_changes_nothing(deployment: Deployment) -> None:
    deployment.want("a")
    states = iter([deployment.desired()])

    def read(_: Config) -> DesiredState:
        for state in states:
            return state
        raise StartError("config.json is not valid JSON")

    manager = DeploymentManager(BASE, deployment.app.registry, read=read, make=deployment.make)
    await manager.load()
    with pytest.raises(StartError, match="not valid JSON"):
        await manager.reload()
    assert deployment.states() == {"a": "ready"}


async def test_two_reloads_at_once_are_one_and_a_client_that_leaves_does_not_stop_it(deployment: Deployment) -> None:
    manager = await deployment.loaded("a")
    deployment.want("a", max_num_seqs=3)
    deployment.slow = {"a"}
    first, second = asyncio.create_task(manager.reload()), asyncio.create_task(manager.reload())
    await until(lambda: len(deployment.made) == 2)
    first.cancel()
    await asyncio.wait([first])
    engine_of(deployment.made[1]).loaded.set()
    assert await second is True
    assert deployment.app.registry.models["a"] is deployment.made[1]


async def test_who_asks_while_a_reload_runs_gets_what_the_files_say_then(deployment: Deployment) -> None:
    manager = await deployment.loaded("a")
    deployment.want("a", "b")
    deployment.slow = {"b"}
    first = asyncio.create_task(manager.reload())
    await until(lambda: len(deployment.made) == 2)
    deployment.want("a", "b", "c")
    second = asyncio.create_task(manager.reload())
    await asyncio.sleep(0.01)
    assert list(deployment.app.registry.models) == ["a", "b"]
    engine_of(deployment.made[1]).loaded.set()
    assert await first is True
    assert await second is True
    assert list(deployment.app.registry.models) == ["a", "b", "c"]


async def test_a_model_that_is_replaced_before_it_has_loaded_does_not_end_the_start(deployment: Deployment) -> None:
    deployment.want("a")
    deployment.slow, deployment.required = {"a"}, True
    manager = deployment.manager()
    loading = asyncio.create_task(manager.load())
    await asyncio.sleep(0)
    deployment.want("a", max_num_seqs=3)
    deployment.slow = set()
    assert await manager.reload() is True
    engine_of(deployment.made[0]).fault = "stopped before it was ready"
    engine_of(deployment.made[0]).loaded.set()
    await loading
    assert deployment.states() == {"a": "ready"}


async def test_a_reload_that_fails_when_all_have_left_leaves_no_trace(deployment: Deployment) -> None:
    manager = await deployment.loaded("a")
    deployment.want("a", "b")
    deployment.faults = {"b": "broken"}
    asking = asyncio.create_task(manager.reload())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: "b" in deployment.states() and deployment.states()["b"] == "failed")


async def test_stopping_ends_every_engine_also_those_that_come_and_go(deployment: Deployment) -> None:
    manager = await deployment.loaded("a", "b")
    generation = await begin(deployment.app.registry.models["b"])
    deployment.want("a", "c", max_num_seqs=3)
    deployment.slow = {"a", "c"}
    reloading = asyncio.create_task(manager.reload())
    await until(lambda: len(deployment.made) == 4)
    await manager.stop()
    with pytest.raises(StartError, match="stopping"):
        await reloading
    assert [model.engine.state for model in deployment.made] == ["stopped"] * 4
    with pytest.raises(StartError, match="stopping"):
        await manager.reload()
    await generation.aclose()


async def test_many_models_share_the_memory_for_their_caches(deployment: Deployment) -> None:
    deployment.want("a")
    deployment.manager()
    assert [model.config.cache_memory_percent for model in deployment.made] == [25]
    deployment.made.clear()
    deployment.want("a", "b", "c", "d", "e")
    deployment.specs[4] = replace(deployment.specs[4], config=deployment.specs[4].config.replace(cache_size=1))
    deployment.manager()
    assert [model.config.cache_memory_percent for model in deployment.made] == [12] * 5


async def test_files_that_change_are_noticed(deployment: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    deployment.files = {file: None}
    manager = await deployment.loaded("a")
    watching = asyncio.create_task(manager.watch(0.001))
    deployment.want("a", "b")
    await asyncio.sleep(0.02)
    assert list(deployment.app.registry.models) == ["a"]  # the file has not changed yet
    file.write_text("changed")
    await until(lambda: "b" in deployment.app.registry.models)
    watching.cancel()
    await asyncio.wait([watching])
    assert list(deployment.app.registry.models) == ["a", "b"]


async def test_a_fault_while_files_are_read_ends_neither_the_server_nor_its_watch(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.json"
    deployment.files = {file: None}
    manager = await deployment.loaded("a")
    right, deployment.desired = deployment.desired, lambda: {}["no such key"]  # type: ignore[method-assign]
    watching = asyncio.create_task(manager.watch(0.001))
    file.write_text("changed")
    await until(lambda: "cannot be applied" in caplog.text)
    deployment.desired = right  # type: ignore[method-assign]
    deployment.want("a", "b")
    file.write_text("changed again")
    await until(lambda: "b" in deployment.app.registry.models)
    assert not watching.done()
    watching.cancel()
    await asyncio.wait([watching])
