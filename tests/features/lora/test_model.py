"""Adapters of a model have engines of their own, loaded by the first request, up to a limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import RequestError, StartError
from lean_ovms.features.lora import files
from lean_ovms.features.lora import model as module
from lean_ovms.features.lora import modules as lora_modules
from lean_ovms.models.generation import collect
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import OutputParams, SamplingParams, TextPrompt
from lean_ovms.types.engine import ModelInfo
from tests.fakes import FakeEngine, say
from tests.makers.make_lora import make


class AdapterEngine(FakeEngine):
    """The engine of an adapter. With a fault it does not start."""

    def __init__(self, config: Config) -> None:
        super().__init__(say(config.served_name))
        self.config = config
        self.fault = False

    async def start(self) -> ModelInfo:
        if self.fault:
            raise StartError("/secret/adapter", reason="It is broken.")
        return await super().start()


class Engines:
    """Records every engine that was created for an adapter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[AdapterEngine] = []
        self.broken = False
        monkeypatch.setattr(module, "engine_of", self._make)

    def _make(self, config: Config) -> AdapterEngine:
        engine = AdapterEngine(config)
        engine.fault = self.broken
        self.made.append(engine)
        return engine

    @property
    def running(self) -> list[str]:
        return [engine.config.served_name for engine in self.made if engine.state == "ready"]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(monkeypatch)


async def base_of(names: str, **options: Any) -> TextModel:
    lora = " ".join(f"{name}=/lora/{name}" for name in names)
    config = Config(fake_engine=True, model_name="base", lora_modules=lora, **options)
    model = TextModel(config, FakeEngine(say("base")))  # type: ignore[arg-type]
    await model.load()
    return model


async def begin(model: Any) -> Any:
    return await model.start(TextPrompt("hi"), SamplingParams(max_tokens=5), OutputParams())


async def ask(model: Any) -> str:
    generation = await begin(model)
    [choice] = await collect(generation, 1)
    await generation.aclose()
    return choice.text


async def test_what_needs_no_network_starts_no_engine(engines: Engines) -> None:
    base = await base_of("a")
    adapter = base.adapters.models["a"]
    assert (adapter.ready, adapter.state, adapter.parent) == (True, "unloaded", "base")
    assert adapter.info == base.info
    assert await adapter.encode(["abc"], False) == [[97, 98, 99]]
    assert await adapter.decode([97], False) == "a"
    assert (await adapter.stats()).running == 0
    assert engines.running == []
    await base.stop()


async def test_files_of_adapters_are_read_once_at_a_start_and_again_by_the_next_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(module.files, "check", lambda one, _: read.append(one.name))
    config = Config(model_path=str(DEMO_MODEL), model_name="base", lora_modules="a=/lora/a")
    model = TextModel(config, FakeEngine(say("base")))  # type: ignore[arg-type]
    await model.check()
    await model.load()
    assert read == ["a"]
    await model.unload()
    await model.load()
    assert read == ["a", "a"]
    await model.stop()


async def test_each_adapter_generates_with_an_engine_of_its_own(engines: Engines) -> None:
    base = await base_of("ab")
    assert await asyncio.gather(*map(ask, base.with_adapters)) == ["base", "a", "b"]
    assert engines.running == ["a", "b"]
    [loaded] = [engine for engine in engines.made if engine.config.served_name == "a"]
    assert "/lora/a" in loaded.config.value("lora_modules")
    await base.stop()
    assert engines.running == []


async def test_where_the_engine_takes_adapters_all_share_it_and_none_starts_or_stops_it(engines: Engines) -> None:
    base = await base_of("ab", max_loras=1)
    engine: Any = base.engine
    engine.info = replace(engine.info, capabilities=["adapters"])
    a, b = base.adapters.models.values()
    assert await ask(base) == await ask(a) == await ask(b) == await ask(a) == "base"
    named = [lora_modules.parse(text)[0] if text else None for text in engine.adapters]
    assert [module and (module.name, module.path) for module in named] == [
        None,
        *((name, f"/lora/{name}") for name in "aba"),
    ]
    assert len(set(numbers(named))) == 3  # each load reads the files again
    assert (a.restarts, (await a.stats()).steps) == (0, 0)
    assert engines.running == []
    await a.unload()
    assert engine.state == "ready"
    assert await ask(base) == "base"
    await base.stop()
    assert engine.state == "stopped"


async def test_an_adapter_that_does_not_fit_the_loaded_network_is_refused_before_a_request_names_it(
    engines: Engines, tmp_path: Path
) -> None:
    base, path = await base_of("", allow_runtime_lora=True), str(make(tmp_path / "demo"))
    engine: Any = base.engine
    layers = {
        name: list(widths) for name, widths in files.pairs(files.SafetensorsFile(files.weights(Path(path)))).items()
    }
    name = next(iter(layers))
    for known, fixed, wrong in (
        ({}, [], ""),
        (layers, [], ""),
        ({"x": [1, 1]}, [], "belongs to another model: it adapts .*, which this model does not have"),
        ({one: layers[one] for one in layers if one != name}, [], f"fits only in part: it adapts {name}, which"),
        (layers | {name: [7, 8]}, [], f"belongs to another model: its {name} does not map 7 to 8 elements"),
        (layers, [name], f"adapts {name}, which only --pipeline_type LM_CB supports"),
    ):
        engine.info = replace(engine.info, of_task={"adapted_layers": known, "fixed_layers": fixed})
        if wrong:
            with pytest.raises(StartError, match=wrong):
                await base.adapters.add("a", path)
        else:
            await base.adapters.add("a", path)
            base.adapters.remove("a")
        assert not base.adapters.models
    await base.stop()


async def test_no_load_of_an_adapter_takes_what_is_cached_of_requests_to_the_model(engines: Engines) -> None:
    base = await base_of("a")
    engine: Any = base.engine
    engine.info = replace(engine.info, capabilities=["adapters"])
    texts = [base.adapters.applied("", ((0, 1.0),))]
    for _ in range(3):
        await ask(base.adapters.models["a"])
        await base.adapters.models["a"].unload()
    texts += engine.adapters
    assert len(set(texts)) == 4
    await base.stop()


async def test_requests_to_the_model_use_the_adapter_that_is_served_also_after_another_load(engines: Engines) -> None:
    base = await base_of("a", allow_runtime_lora=True)
    await base.adapters.add("a", "/lora/other")
    text = base.adapters.applied("", ((0, 1.0),))
    assert lora_modules.parse(text)[0].path == "/lora/other"
    await base.unload()
    await base.load()
    assert base.adapters.applied("", ((0, 1.0),)) == text
    await base.stop()


async def test_what_is_computed_before_a_model_is_ready_is_found_by_requests(engines: Engines) -> None:
    texts: list[str] = []

    class Prewarmer:
        def check(self) -> None:
            pass

        async def compute(self) -> None:
            texts.append(base.adapters.applied("", ((0, 1.0),)))

    base = await base_of("a")
    base.preparations.append(Prewarmer())
    await base.unload()
    await base.load()
    assert texts == [base.adapters.applied("", ((0, 1.0),))]
    await base.stop()


async def test_an_adapter_with_the_longest_name_is_used(engines: Engines) -> None:
    name = "a" * lora_modules.MOST_NAME
    base = await base_of("", allow_runtime_lora=True)
    engine: Any = base.engine
    engine.info = replace(engine.info, capabilities=["adapters"])
    adapter = await base.adapters.add(name, "/lora/a")
    await ask(adapter)
    assert lora_modules.parse(engine.adapters[-1])[0].path == "/lora/a"
    assert lora_modules.parse(base.adapters.applied("", ((0, 1.0),)))[0].path == "/lora/a"
    await base.stop()


def numbers(modules: list[lora_modules.LoraModule | None]) -> list[int]:
    return [module.load for module in modules if module is not None]


@pytest.mark.slow
async def test_another_adapter_waits_until_one_that_works_has_finished(engines: Engines) -> None:
    base = await base_of("ab", max_loras=1)
    a, b = base.adapters.models.values()
    generation = await begin(a)
    waiting = asyncio.create_task(ask(b))
    await asyncio.sleep(0.15)
    assert engines.running == ["a"]
    await generation.aclose()
    assert await waiting == "b"
    assert engines.running == ["b"]
    await base.stop()


async def test_an_idle_adapter_is_unloaded_and_loaded_again(engines: Engines) -> None:
    base = await base_of("a", lora_idle_timeout_s=0.02)
    adapter = base.adapters.models["a"]
    assert await ask(adapter) == "a"
    while engines.running:
        await asyncio.sleep(0.005)
    assert (engines.running, adapter.ready) == ([], True)
    assert await ask(adapter) == "a"
    await base.stop()


async def test_an_adapter_that_does_not_load_is_reported_and_leaves_its_base(engines: Engines) -> None:
    base = await base_of("a")
    engines.broken = True
    for engine in engines.made:
        engine.fault = True
    with pytest.raises(RequestError, match="It is broken"):
        await ask(base.adapters.models["a"])
    assert (base.adapters.models["a"].state, base.state) == ("failed", "ready")
    assert await ask(base) == "base"
    await base.stop()


async def test_a_model_that_is_unloaded_takes_its_adapters_along(engines: Engines) -> None:
    base = await base_of("a")
    await ask(base.adapters.models["a"])
    await base.unload()
    assert (engines.running, base.loaded, base.known) == ([], False, True)
    await base.load()
    assert await ask(base.adapters.models["a"]) == "a"
    await base.stop()
