"""A server's models while it runs: loaded side by side, replaced without a gap, retired when nobody uses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.deployment.desired import DesiredState, ModelSpec, stat
from lean_ovms.deployment.manager import ModelManager
from lean_ovms.errors import ModelNotFound, StartError, Unavailable
from lean_ovms.models.text_model import Model
from lean_ovms.types import ModelInfo, OutputParams, Request, SamplingParams, TextPrompt
from tests.fakes import FakeEngine, say

BASE = Config(fake_engine=True, config_path="config.json", access_log=False)


class SlowEngine(FakeEngine):
    """Ready when `loaded` is set; does not load at all with a `fault`."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(say("a", "b"))
        self.fault = fault
        self.loaded = asyncio.Event()
        self.loaded.set()

    async def start(self) -> ModelInfo:
        await self.loaded.wait()
        if self.fault:
            self.state = "failed"
            raise StartError(self.fault, reason="It is broken.")
        return await super().start()


class House:
    """An app with a fleet; want() says what to serve, made holds every model that was ever made."""

    def __init__(self) -> None:
        self.wanted: list[ModelSpec] = []
        self.files: dict[Path, Any] = {}
        self.made: list[Model] = []
        self.faults: dict[str, str] = {}
        self.slow: set[str] = set()
        self.required = False
        self.app = App(BASE, [])

    def want(self, *names: str, **options: Any) -> None:
        config = replace(BASE, config_path="", **options)
        self.wanted = [ModelSpec(config=replace(config, model_name=name)) for name in names]

    def fleet(self, config: Config = BASE) -> ModelManager:
        return ModelManager(config, self.app, read=lambda _: self.wish(), make=self.make)

    def wish(self) -> DesiredState:
        files = {path: stat(path) for path in self.files}
        return DesiredState(models=tuple(self.wanted), files=files, required=self.required)

    def make(self, config: Config) -> Model:
        engine = SlowEngine(self.faults.get(config.model_name, ""))
        if config.model_name in self.slow:
            engine.loaded.clear()
        model = Model(config, engine)  # type: ignore[arg-type]
        self.made.append(model)
        return model

    def states(self) -> dict[str, str]:
        return {name: model.state for name, model in self.app.models.items()}


def engine_of(model: Model) -> SlowEngine:
    assert isinstance(model.engine, SlowEngine)
    return model.engine


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)  # files are read in a thread
    raise AssertionError("it never came true")


async def begin(model: Model) -> Any:
    return await model.start(TextPrompt("hi"), SamplingParams(max_tokens=5), OutputParams())


@pytest.fixture
def house() -> House:
    return House()


async def test_models_load_side_by_side(house: House) -> None:
    house.want("a", "b")
    house.slow = {"a", "b"}
    fleet = house.fleet()
    loading = asyncio.create_task(fleet.load())
    await asyncio.sleep(0)
    assert house.states() == {"a": "loading", "b": "loading"}
    for model in house.made:
        engine_of(model).loaded.set()
    await loading
    assert house.states() == {"a": "ready", "b": "ready"}


async def test_one_that_does_not_load_leaves_the_others_and_says_so_to_its_clients(house: House) -> None:
    house.want("a", "b")
    house.faults = {"b": "no such file /secret"}
    await house.fleet().load()
    assert house.states() == {"a": "ready", "b": "failed"}
    with pytest.raises(Unavailable, match=r"could not be loaded. It is broken\.") as caught:
        await begin(house.app.models["b"])
    assert "/secret" not in caught.value.message


async def test_one_that_is_configured_wrongly_is_not_even_tried(house: House) -> None:
    house.want("a", "b")
    house.wanted[1] = replace(house.wanted[1], problem=StartError("wrong graph", reason="Its graph is not valid."))
    await house.fleet().load()
    assert house.states() == {"a": "ready", "b": "failed"}
    assert house.made[1].engine.state == "loading"
    with pytest.raises(Unavailable, match="Its graph is not valid"):
        await begin(house.app.models["b"])


async def test_the_model_of_the_command_line_must_load(house: House) -> None:
    house.want("a")
    house.faults, house.required = {"a": "broken"}, True
    with pytest.raises(StartError, match="broken"):
        await house.fleet().load()


@pytest.mark.parametrize("announced", [True, False])
async def test_a_model_that_is_announced_is_listed_while_it_loads(house: House, announced: bool) -> None:
    house.want("a", "b")
    house.wanted = [replace(one, announced=announced) for one in house.wanted]
    house.slow, house.faults = {"a", "b"}, {"b": "broken"}
    loading = asyncio.create_task(house.fleet().load())
    await asyncio.sleep(0)
    assert await listed(house) == (["a", "b"] if announced else [])
    one = await house.app.handle(Request("GET", "/v1/models/a"))
    assert one.status == (200 if announced else 404)
    for model in house.made:
        engine_of(model).loaded.set()
    await loading
    assert await listed(house) == ["a"]


async def listed(house: House) -> list[str]:
    response = await house.app.handle(Request("GET", "/v1/models"))
    assert isinstance(response.body, bytes)
    return [one["id"] for one in json.loads(response.body)["data"]]


async def test_nothing_changed_is_nothing_done(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    assert await fleet.reload() is False
    assert len(house.made) == 1


async def test_a_new_model_is_added_and_the_list_has_the_order_of_the_file(house: House) -> None:
    house.want("b")
    fleet = house.fleet()
    await fleet.load()
    house.want("a", "b", "c")
    assert await fleet.reload() is True
    assert list(house.app.models) == ["a", "b", "c"]
    assert set(house.states().values()) == {"ready"}
    assert len(house.made) == 3


async def test_a_changed_model_is_replaced_when_its_successor_is_ready_not_before(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    old = house.app.models["a"]
    house.want("a", max_num_seqs=3)
    house.slow = {"a"}
    reloading = asyncio.create_task(fleet.reload())
    await until(lambda: len(house.made) == 2)
    new = house.made[1]
    assert house.app.models["a"] is old
    await (await begin(house.app.models["a"])).aclose()
    engine_of(new).loaded.set()
    assert await reloading is True
    assert house.app.models["a"] is new
    await until(lambda: old.engine.state == "stopped")


async def test_what_runs_on_the_old_engine_finishes_there(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    old = house.app.models["a"]
    generation = await begin(old)
    house.want("a", max_num_seqs=3)
    await fleet.reload()
    await asyncio.sleep(0)
    assert old.engine.state == "ready"
    text = "".join([event.text async for deltas in generation for d in deltas for event in d.events])
    assert text == "ab"
    await generation.aclose()
    await until(lambda: old.engine.state == "stopped")


async def test_a_request_on_its_way_to_the_old_model_is_served_by_the_new_one(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    old = house.app.models["a"]
    house.want("a", max_num_seqs=3)
    await fleet.reload()
    await until(lambda: old.engine.state == "stopped")
    generation = await begin(old)
    await generation.aclose()
    assert len(engine_of(house.app.models["a"]).submitted) == 1
    assert await old.encode(["x"], False) == [[120]]


async def test_a_successor_that_does_not_load_leaves_the_old_model_serving(house: House) -> None:
    house.want("a", "b")
    fleet = house.fleet()
    await fleet.load()
    old = dict(house.app.models)
    house.want("a", "b", max_num_seqs=3)
    house.faults = {"a": "broken"}
    with pytest.raises(StartError, match="broken"):
        await fleet.reload()
    assert house.app.models["a"] is old["a"]
    assert house.app.models["b"] is not old["b"]
    assert str(old["a"].failure) == "broken"
    await (await begin(old["a"])).aclose()
    house.faults = {}
    assert await fleet.reload() is True
    assert house.app.models["a"].failure is None
    assert house.app.models["a"] is not old["a"]


async def test_going_back_to_what_is_served_forgets_the_failure(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    before = house.wanted
    house.want("a", max_num_seqs=3)
    house.faults = {"a": "broken"}
    with pytest.raises(StartError):
        await fleet.reload()
    house.wanted = before
    await fleet.reload()
    assert house.app.models["a"] is house.made[0]
    assert house.app.models["a"].failure is None


async def test_a_removed_model_finishes_its_requests_and_is_not_found_any_more(house: House) -> None:
    house.want("a", "b")
    fleet = house.fleet()
    await fleet.load()
    gone = house.app.models["b"]
    generation = await begin(gone)
    house.want("a")
    assert await fleet.reload() is True
    assert list(house.app.models) == ["a"]
    await asyncio.sleep(0)
    assert house.app.unloaded == {"b": "UNLOADING"}
    with pytest.raises(ModelNotFound):
        await begin(gone)
    assert gone.engine.state == "ready"
    await generation.aclose()
    await until(lambda: house.app.unloaded == {"b": "END"})
    assert gone.engine.state == "stopped"
    house.want("a", "b")
    await fleet.reload()
    assert house.app.unloaded == {}


async def test_one_that_failed_is_tried_again_at_the_next_reload(house: House) -> None:
    house.want("a", "b")
    house.faults = {"b": "broken"}
    fleet = house.fleet()
    await fleet.load()
    house.faults = {}
    assert await fleet.reload() is True
    assert house.states() == {"a": "ready", "b": "ready"}
    assert house.app.models["a"] is house.made[0]


async def test_a_configuration_that_cannot_be_read_changes_nothing(house: House) -> None:
    house.want("a")
    wishes = iter([house.wish()])

    def read(_: Config) -> DesiredState:
        for wish in wishes:
            return wish
        raise StartError("config.json is not valid JSON")

    fleet = ModelManager(BASE, house.app, read=read, make=house.make)
    await fleet.load()
    with pytest.raises(StartError, match="not valid JSON"):
        await fleet.reload()
    assert house.states() == {"a": "ready"}


async def test_two_reloads_at_once_are_one_and_a_client_that_leaves_does_not_stop_it(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    house.want("a", max_num_seqs=3)
    house.slow = {"a"}
    first, second = asyncio.create_task(fleet.reload()), asyncio.create_task(fleet.reload())
    await until(lambda: len(house.made) == 2)
    first.cancel()
    await asyncio.wait([first])
    engine_of(house.made[1]).loaded.set()
    assert await second is True
    assert house.app.models["a"] is house.made[1]


async def test_who_asks_while_a_reload_runs_gets_what_the_files_say_then(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    house.want("a", "b")
    house.slow = {"b"}
    first = asyncio.create_task(fleet.reload())
    await until(lambda: len(house.made) == 2)
    house.want("a", "b", "c")
    second = asyncio.create_task(fleet.reload())
    await asyncio.sleep(0.01)
    assert list(house.app.models) == ["a", "b"]
    engine_of(house.made[1]).loaded.set()
    assert await first is True
    assert await second is True
    assert list(house.app.models) == ["a", "b", "c"]


async def test_a_model_that_is_replaced_before_it_has_loaded_does_not_end_the_start(house: House) -> None:
    house.want("a")
    house.slow, house.required = {"a"}, True
    fleet = house.fleet()
    loading = asyncio.create_task(fleet.load())
    await asyncio.sleep(0)
    house.want("a", max_num_seqs=3)
    house.slow = set()
    assert await fleet.reload() is True
    engine_of(house.made[0]).fault = "stopped before it was ready"
    engine_of(house.made[0]).loaded.set()
    await loading
    assert house.states() == {"a": "ready"}


async def test_a_reload_that_fails_when_all_have_left_leaves_no_trace(house: House) -> None:
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    house.want("a", "b")
    house.faults = {"b": "broken"}
    asking = asyncio.create_task(fleet.reload())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: "b" in house.states() and house.states()["b"] == "failed")


async def test_stopping_ends_every_engine_also_those_that_come_and_go(house: House) -> None:
    house.want("a", "b")
    fleet = house.fleet()
    await fleet.load()
    generation = await begin(house.app.models["b"])
    house.want("a", "c", max_num_seqs=3)
    house.slow = {"a", "c"}
    reloading = asyncio.create_task(fleet.reload())
    await until(lambda: len(house.made) == 4)
    await fleet.stop()
    await asyncio.wait([reloading])
    assert [model.engine.state for model in house.made] == ["stopped"] * 4
    with pytest.raises(StartError, match="stopping"):
        await fleet.reload()
    await generation.aclose()


async def test_many_models_share_the_memory_for_their_caches(house: House) -> None:
    house.want("a")
    house.fleet()
    assert [model.config.cache_memory_percent for model in house.made] == [25]
    house.made.clear()
    house.want("a", "b", "c", "d", "e")
    house.wanted[4] = replace(house.wanted[4], config=replace(house.wanted[4].config, cache_size=1))
    house.fleet()
    assert [model.config.cache_memory_percent for model in house.made] == [12] * 5


async def test_files_that_change_are_noticed(house: House, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    house.files = {file: None}
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    watching = asyncio.create_task(fleet.watch(0.001))
    house.want("a", "b")
    await asyncio.sleep(0.02)
    assert list(house.app.models) == ["a"]  # nobody has said that the file is another one
    file.write_text("changed")
    await until(lambda: "b" in house.app.models)
    watching.cancel()
    await asyncio.wait([watching])
    assert list(house.app.models) == ["a", "b"]


async def test_a_fault_while_files_are_read_ends_neither_the_server_nor_its_watch(
    house: House, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.json"
    house.files = {file: None}
    house.want("a")
    fleet = house.fleet()
    await fleet.load()
    right, house.wish = house.wish, lambda: {}["nobody has thought of this"]  # type: ignore[method-assign]
    watching = asyncio.create_task(fleet.watch(0.001))
    file.write_text("changed")
    await until(lambda: "cannot be served" in caplog.text)
    house.wish = right  # type: ignore[method-assign]
    house.want("a", "b")
    file.write_text("changed again")
    await until(lambda: "b" in house.app.models)
    assert not watching.done()
    watching.cancel()
    await asyncio.wait([watching])
