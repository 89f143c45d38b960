"""llama.cpp's adapters: flags, /lora-adapters, and the scales of requests to the model itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.errors import BadRequest, StartError
from lean_ovms.features.lora import files, flags, modules
from lean_ovms.features.lora.child import provider
from lean_ovms.features.lora.child.adapter_layers import Layers
from lean_ovms.features.lora.feature import LoraOptions
from lean_ovms.features.lora.model import LoraSet
from lean_ovms.features.lora.modules import LoraModule
from tests.api.conftest import MakeApp, get, post, whole

TWO = modules.dumps(LoraModule("a", "/lora/a", None, 0.5, True), LoraModule("b", "/lora/b"))


@pytest.mark.parametrize(
    ("flags", "found", "applies"),
    [
        ("--lora /x/a.gguf,/y/b.gguf",
            [LoraModule("a", "/x/a.gguf", None, 1, True), LoraModule("b", "/y/b.gguf", None, 1, True)], True),
        ("--lora-scaled /x/a.b.gguf:0.5 --lora /c --lora-init-without-apply",
            [LoraModule("a.b", "/x/a.b.gguf", None, 0.5, True), LoraModule("c", "/c", None, 1, True)], False),
        ("--lora a.gguf --lora_modules b=/b,2", [LoraModule("a", "a.gguf", None, 1, True), LoraModule("b", "/b", 2)],
            True),
        ("--lora_modules b=/b --lora a", [LoraModule("b", "/b"), LoraModule("a", "a", None, 1, True)], True),
    ],
)  # fmt: skip
def test_flags_of_llama_cpp_add_adapters_that_are_applied(flags: str, found: list[LoraModule], applies: bool) -> None:
    options = parse(["--model_path", "/m", *flags.split()], {}).of(LoraOptions)
    assert modules.parse(options.lora_modules) == found
    assert options.apply_loras is applies


@pytest.mark.parametrize("text", ["a.gguf", "a.gguf:", "a:x", "a:1,b", ":1", "a:inf"])
def test_a_scale_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"PATH:SCALE, with commas between several|the path of an adapter"):
        flags.scaled(text)
    with pytest.raises(ValueError, match="the path of an adapter"):
        flags.applied("a,,b")


async def asked(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, lora_modules: str = TWO, **options: Any) -> Any:
    """Returns an app whose model shares its engine with adapters."""
    monkeypatch.setattr(files, "check", lambda *_: None)
    monkeypatch.setattr(LoraSet, "shared", True)
    app, engine = await make_app(lora_modules=lora_modules, **options)
    return app, engine, app.registry.get("m").adapters


async def scales(app: Any) -> list[float]:
    rows = await whole(await get(app, "/lora-adapters"))
    assert [(row["id"], row["path"]) for row in rows] == [(0, "a"), (1, "b")]
    return [row["scale"] for row in rows]


def used(adapters: LoraSet, *pairs: tuple[int, float]) -> list[tuple[str, float]]:
    """Returns the adapters of a request with their scales."""
    found = modules.parse(adapters.applied("", pairs))
    return [(module.name, module.scale) for module in found]


async def test_requests_to_the_model_have_the_scales_of_the_options_or_the_last_change(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _, adapters = await asked(make_app, monkeypatch)
    assert await scales(app) == [0.5, 0.0]
    assert used(adapters) == [("a", 0.5)]
    response = await post(app, "/lora-adapters", b'[{"id": 1, "scale": -2}]')
    assert (response.status, await whole(response)) == (200, {"success": True})
    assert await scales(app) == [0.0, -2.0]
    assert used(adapters) == [("b", -2)]
    for body, error in (
        (b'[{"id": 2, "scale": 1}]', "lora: there is no adapter 2 among the 2 of the model"),
        (b'[{"id": 0}]', "lora needs objects with an id and a scale from -100 to 100"),
        (b'{"id": 0}', "lora is not an array"),
        (b"null", "the body must be an array of objects with id and scale"),
        (b"[", "Cannot parse JSON body"),
        (b"[]]", "Cannot parse JSON body"),
        (b'[],"x":1', "Cannot parse JSON body"),
        (b"", "Cannot parse JSON body"),
    ):
        response = await post(app, "/lora-adapters", body)
        assert response.status == 400
        assert error in (await whole(response))["error"]["message"]
    assert await scales(app) == [0.0, -2.0]


async def test_a_request_has_scales_of_its_own(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, adapters = await asked(make_app, monkeypatch)
    assert used(adapters, (0, 0.25), (1, 2.0)) == [("a", 0.25), ("b", 2.0)]
    assert used(adapters, (0, 0.0)) == []
    with pytest.raises(BadRequest, match="there is no adapter 7 among the 2"):
        adapters.applied("", [(7, 1.0)])
    with pytest.raises(BadRequest, match="only the base model of adapters applies several"):
        adapters.models["a"].adapters.applied("a#1", ((0, 1.0),))
    assert adapters.models["a"].adapters.applied("a#1", ()) == "a#1"
    text = adapters.applied("", ())
    adapters.remove("a")
    assert used(adapters) == []
    await adapters.add("a", "/lora/a")
    assert adapters.applied("", [(1, 0.5)]) != text
    assert used(adapters, (1, 0.5)) == [("a", 0.5)]
    for bad in (
        [1],
        [{"id": -1, "scale": 1}],
        [{"id": 0, "scale": 1e9}],
        [{"id": 0, "scale": True}],
        [{"id": [], "scale": 1}],
    ):
        with pytest.raises(BadRequest, match="lora needs objects with an id and a scale from -100 to 100"):
            readers_of_lora([bad])


def readers_of_lora(value: list[Any]) -> Any:
    from lean_ovms.api.generation.sampling import SAMPLING

    read = SAMPLING.named("lora").read
    assert read is not None
    return read(value)


async def test_without_apply_adapters_have_the_scale_zero(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _, adapters = await asked(make_app, monkeypatch, apply_loras=False)
    assert await scales(app) == [0.0, 0.0]
    assert adapters.applied("", ()) == ""


async def test_an_engine_that_applies_no_adapters_says_so(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "check", lambda *_: None)
    with pytest.raises(StartError, match="this engine serves adapters under their own names only"):
        await make_app(lora_modules=TWO)
    app, _ = await make_app(lora_modules="a=/lora/a b=/lora/b")
    response = await post(app, "/lora-adapters", {})
    assert response.status == 400
    response = await post(app, "/lora-adapters", b"[]")
    assert response.status == 501
    assert "under their own names" in (await whole(response))["error"]["message"]
    plain, _ = await make_app()
    response = await post(plain, "/lora-adapters", b"[]")
    assert response.status == 501
    assert "this model has no adapters" in (await whole(response))["error"]["message"]


def test_several_adapters_add_what_each_would_and_files_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dice, read = np.random.default_rng(1), list[str]()
    parts = {
        "a": {"x": (dice.normal(size=(2, 8)), dice.normal(size=(4, 2)))},
        "b": {"x": (dice.normal(size=(3, 8)), dice.normal(size=(4, 3))), "y": (np.ones((1, 4)), np.ones((8, 1)))},
    }
    adapters = provided(monkeypatch, parts, read, 3)
    for one, other in ((0.5, -4.0), (1.0, 0.0), (3.0, 1.0)):
        text = modules.dumps(LoraModule("a", "/a", None, one), LoraModule("b", "/b", None, other))
        found = adapters.get(text)
        assert found is not None
        assert adapters.get(text) is found
        for layer, matrices in found.layers.items():
            wanted = sum(
                2 * scale * parts[name][layer][1] @ parts[name][layer][0]
                for name, scale in (("a", one), ("b", other))
                if layer in parts[name]
            )
            np.testing.assert_allclose(found.scale * matrices[1] @ matrices[0], wanted, rtol=1e-5, atol=1e-6)
    assert read == ["a", "b"]
    single = adapters.get(modules.dumps(LoraModule("a", "/a", None, -0.5)))
    assert single is not None
    assert single.scale == -1.0
    assert adapters.name(found.key) == "a:3.0 + b"
    assert read == ["a", "b"]


def test_an_adapter_whose_file_was_overwritten_has_another_key_and_the_same_weights_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key decides which cached prompts a request finds; one adapter is kept, so that each is read again."""
    parts = {name: {"x": (np.full((1, 8), 0.5), np.ones((4, 1)))} for name in "ab"}
    read = list[str]()
    adapters = provided(monkeypatch, parts, read, 1)

    def key(name: str, load: int, scale: float = 1.0) -> str:
        adapter = adapters.get(modules.dumps(LoraModule(name, "/x", None, scale, load=load)))
        assert adapter is not None
        assert adapters.name(adapter.key) == (name if scale == 1.0 else f"{name}:{scale}")
        return adapter.key

    before = key("a", 1)
    assert key("b", 1) != before
    assert key("a", 1) == key("a", 2) == before
    assert key("a", 2, 2.0) != before
    parts["a"]["x"][0][0, 3] = -0.5
    assert key("a", 2) == before  # not read again
    assert key("b", 1) != key("a", 2) != before
    assert read == ["a", "b", "a", "a", "b", "a"]


def provided(monkeypatch: pytest.MonkeyPatch, parts: Any, read: list[str], most: int) -> provider.LoraAdapters:
    """Returns the provider of adapters with these matrices; it keeps `most`, and `read` gets the names of those read.

    The matrices are copied when an adapter is read, as they are from a file."""

    def reading(text: str, base: Any) -> tuple[float, Any]:
        [module] = modules.parse(text)
        read.append(module.name)
        return 2.0, {layer: (down.copy(), up.copy()) for layer, (down, up) in parts[module.name].items()}

    monkeypatch.setattr(provider.reading, "read", reading)

    class Sink:
        def write(self, *_: Any) -> None:
            pass

    return provider.LoraAdapters(Sink(), Layers(({"x": (8, 4)}, {"y": (4, 8)}), frozenset()), most, {})  # type: ignore[arg-type]


def test_objects_and_pairs_may_be_mixed() -> None:
    text = f'a=/x,2 {json.dumps({"name": "b", "path": "/y z"})} c=/w [{{"name": "d", "path": "/v", "applied": true}}]'
    assert [(one.name, one.path, one.applied) for one in modules.parse(text)] == [
        ("a", "/x", False), ("b", "/y z", False), ("c", "/w", False), ("d", "/v", True),
    ]  # fmt: skip
    with pytest.raises(StartError, match="and the boolean applied"):
        modules.parse('{"name": "a", "path": "/x", "applied": 1}')
