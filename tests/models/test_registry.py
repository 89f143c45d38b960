"""Models by name: their order, their adapters, errors for other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, ModelNotFound
from lean_ovms.models.model import Model, ModelRegistry
from lean_ovms.models.text_model import TextModel
from lean_ovms.observability.records import Metrics, RequestRecord, current_record
from lean_ovms.util.concurrency import Offload
from tests.fakes import FakeEngine


class EmbeddingModel(Model):
    """A model of another task, which needs nothing of chats."""

    task, endpoints = "embeddings", ("/v1/embeddings",)


def model(name: str, kind: type[Model] = TextModel, **options: str) -> Model:
    return kind(Config(fake_engine=True, model_name=name, **options), FakeEngine([]))  # type: ignore[arg-type]


@pytest.fixture
def registry() -> ModelRegistry:
    found = ModelRegistry(Metrics(), Offload(1))
    found.install(model("a"))
    found.install(model("b"))
    return found


def test_a_model_is_found_by_its_name_and_the_record_of_the_request_names_it(registry: ModelRegistry) -> None:
    record = RequestRecord("id", "POST", "/", "", 0.0)
    token = current_record.set(record)
    try:
        assert registry.get("b", TextModel) is registry.models["b"]
    finally:
        current_record.reset(token)
    assert record.model == "b"


def test_an_unknown_name_is_refused_with_those_that_are_served(registry: ModelRegistry) -> None:
    with pytest.raises(ModelNotFound, match="'no' does not exist; served models: a, b") as caught:
        registry.get("no")
    assert (caught.value.status, caught.value.param) == (404, "model")


def test_aliases_find_a_model_and_never_hide_a_name(registry: ModelRegistry) -> None:
    registry.install(model("c", model_aliases="other a c"))
    assert registry.get("other") is registry.models["c"]
    assert registry.get("a") is registry.models["a"]
    assert list(registry.names) == ["a", "b", "c", "other"]
    assert registry.default_of(TextModel) == ""


async def test_a_model_of_another_task_is_refused_and_served_as_what_it_is(registry: ModelRegistry) -> None:
    registry.install(model("e", EmbeddingModel))
    with pytest.raises(BadRequest, match="'e' is for embeddings, not for text generation; use it at") as caught:
        registry.get("e", TextModel)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "model", "wrong_task")
    found = registry.get("e", EmbeddingModel)
    await found.load()
    assert found.serving() is found is registry.get("e")
    assert found.state == "ready"


def test_adapters_are_served_after_their_model(registry: ModelRegistry, tmp_path: Path) -> None:
    registry.install(model("c", lora_modules=f"x={tmp_path}"))
    assert [one.name for one in registry.served] == ["a", "b", "c", "x"]
    assert list(registry.models) == ["a", "b", "c"]
    assert (registry.get("x").parent, type(registry.get("x"))) == ("c", TextModel)
    assert registry.get("x").offload is registry.get("a").offload


def test_only_a_single_model_is_the_default(registry: ModelRegistry) -> None:
    assert registry.default_of(TextModel) == ""
    registry.remove("b")
    assert registry.default_of(TextModel) == "a"
    registry.remove("a")
    assert registry.default_of(TextModel) == ""


def test_removed_names_are_remembered_until_they_are_served_again(registry: ModelRegistry) -> None:
    gone = registry.remove("a")
    assert registry.unloaded == {"a": "UNLOADING"}
    registry.removed("a")
    assert registry.unloaded == {"a": "END"}
    registry.install(gone)
    registry.removed("a")
    assert registry.unloaded == {}


def test_the_order_is_that_of_the_configuration(registry: ModelRegistry) -> None:
    registry.install(model("c"))
    registry.reorder(["b", "unknown", "a"])
    assert list(registry.models) == ["b", "a", "c"]
