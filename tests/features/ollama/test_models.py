"""/api/version, tags, ps and show: information on the server and its models, loaded or not."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.features.ollama.api.models import capabilities, human
from lean_ovms.features.ollama.api.weights import weights_of
from lean_ovms.models.text_model import TextModel
from lean_ovms.repository import model_file
from lean_ovms.repository.model_dir import ModelDir
from lean_ovms.repository.model_file import FileWeights
from lean_ovms.types import Json, Request
from tests.api.conftest import MakeApp, MakePooling, get, post, whole
from tests.fakes import FakeEngine, say
from tests.features.ollama.test_chat import PARSING, error


async def test_the_version_is_a_number(make_app: MakeApp) -> None:
    app, _ = await make_app(api_key="secret")
    body = await whole(await get(app, "/api/version"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", body["version"])
    assert tuple(map(int, body["version"].split("."))) >= (0, 6, 4)  # VS Code requires at least this version


async def test_models_and_running_models_are_listed(make_app: MakeApp) -> None:
    app, _ = await make_app(model_aliases="other:8b org/other", **PARSING)
    models = (await whole(await get(app, "/api/tags")))["models"]
    assert [(one["name"], one["model"]) for one in models] == [
        (name, name) for name in ("m:latest", "other:8b", "org/other:latest")
    ]
    assert models[0]["capabilities"] == ["completion", "tools", "thinking"]
    assert models[0]["details"]["context_length"] == 1000
    [running] = (await whole(await get(app, "/api/ps")))["models"]
    assert (running["name"], running["context_length"], running["size_vram"]) == ("m:latest", 1000, 0)
    assert running["expires_at"] > "2100"
    app.registry.get("m", TextModel).parent = "base"  # an adapter, which is in memory with its model
    assert (await whole(await get(app, "/api/ps")))["models"] == []


async def test_the_defaults_of_its_samplers_are_shown(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    defaults = {"mirostat": 2, "repeat_last_n": 64, "typical_p": "x"}
    app.registry.get("m", TextModel).directory = ModelDir(generation_config=defaults)
    shown = (await whole(await post(app, "/api/show", {"model": "m"})))["parameters"]
    assert [line.split() for line in shown.split("\n")[-2:]] == [["repeat_last_n", "64"], ["mirostat", "2"]]


async def test_a_model_is_described(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    model = app.registry.get("m", TextModel)
    model.directory = ModelDir(
        config={"model_type": "qwen3"},
        generation_config={"temperature": 0.6, "top_k": 20, "stop_strings": ['"'], "eos_token_id": 1},
        tokenizer={"added_tokens_decoder": {str(i): {"content": f"<|fim_{w}|>"} for i, w in enumerate(FIM)}},
    )
    for body in ({"model": "m"}, {"name": "m:latest"}, {"model": "", "name": "M", "verbose": True}):
        shown = await whole(await post(app, "/api/show", body))
    assert shown["capabilities"] == ["completion", "tools", "insert"]
    assert shown["model_info"] == {
        "general.architecture": "qwen3",
        "general.basename": "m",
        "general.parameter_count": 0,
        "qwen3.context_length": 1000,
    }
    assert shown["details"]["family"] == "qwen3"
    assert shown["template"].endswith(";{% endfor %}{# .Suffix #}")
    parameters = [re.fullmatch(r'(\S+)\s+((?:".*")|\S+)', line) for line in shown["parameters"].split("\n")]
    assert [found.groups() for found in parameters if found] == [
        ("num_ctx", "1000"), ("temperature", "0.6"), ("top_k", "20"), ("top_p", "1"), ("min_p", "0"),
        ("repeat_penalty", "1"), ("stop", '"\\""'),
    ]  # fmt: skip
    assert shown["modified_at"].endswith("Z")
    assert await error(await post(app, "/api/show", {"model": "nope"})) == (
        404,
        "model 'nope' not found; served models: m",
    )
    assert await error(await post(app, "/api/show", {})) == (400, "model is required")


FIM = ("prefix", "suffix", "middle", "pad")


async def test_an_embedding_model(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    shown = await whole(await post(app, "/api/show", {"model": "e"}))
    assert shown["capabilities"] == ["embedding"]
    assert shown["details"]["embedding_length"] == engine.task.info.dimensions
    assert (shown["template"], shown["parameters"]) == ("", "")
    app, _ = await make_pooling("rerank")
    assert (await whole(await get(app, "/api/tags")))["models"][0]["capabilities"] == []


async def test_what_files_tell_of_a_model_that_is_not_loaded() -> None:
    config = Config(model_path=str(DEMO_MODEL), model_name="m")
    model = TextModel(config, FakeEngine([]))  # type: ignore[arg-type]
    await model.open()
    assert await capabilities(model) == ["completion", "tools", "thinking"]
    assert model.context_length == 131072
    weights = await weights_of(model)
    assert (weights.precision, weights.bytes > 1_000_000, weights.parameters > 1_000_000) == ("u8", True, True)
    assert re.fullmatch("[0-9a-f]{64}", weights.digest)
    model.config = config.replace(tool_parser="none")
    assert await capabilities(model) == ["completion", "thinking"]


class OneFile:
    """A model that is a single file."""

    def config(self) -> Json:
        return {"model_type": "gemma3"}

    def weights(self) -> FileWeights:
        return FileWeights(parameters=268_098_176, precision="Q4_K_M")


async def test_what_lists_and_show_say_of_a_model_that_is_one_file(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model_file, "of", lambda path: OneFile())
    (tmp_path / "m.gguf").touch()
    os.utime(tmp_path / "m.gguf", (1e9, 1e9))
    app, _ = await make_app()
    model = app.registry.get("m", TextModel)
    model.config = model.config.replace(model_path=str(tmp_path / "m.gguf"), fake_engine=False)
    [row] = (await whole(await get(app, "/api/tags")))["models"]
    assert row["modified_at"].startswith("2001-09-09T01:46:40")
    [running] = (await whole(await get(app, "/api/ps")))["models"]
    shown = await whole(await post(app, "/api/show", {"model": "m"}))
    for details in (row["details"], running["details"], shown["details"]):
        assert (details["format"], details["family"], details["families"]) == ("gguf", "gemma3", ["gemma3"])
        assert (details["parameter_size"], details["quantization_level"]) == ("268.10M", "Q4_K_M")
    assert shown["model_info"]["general.architecture"] == "gemma3"
    assert shown["model_info"]["general.parameter_count"] == 268_098_176
    monkeypatch.setattr(OneFile, "config", lambda self: {"model_type": "qwen3"})
    assert (await weights_of(model)).family == "gemma3"
    (tmp_path / "m.gguf").write_bytes(b"another")
    changed = await weights_of(model)
    assert (changed.family, changed.bytes, changed.digest != row["digest"]) == ("qwen3", 7, True)
    for device, size in (("CPU", 0), ("HETERO:GPU,CPU", 7)):
        model.config = model.config.replace(target_device=device)
        [running] = (await whole(await get(app, "/api/ps")))["models"]
        assert (running["size"], running["size_vram"]) == (7, size)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (999, "999"), (1000, "1K"), (1500, "2K"), (494_032_768, "494.03M"), (7_615_616_512, "7.6B")],
)
def test_numbers_of_parameters(count: int, text: str) -> None:
    assert human(count) == text


@pytest.mark.parametrize(
    ("host", "accept", "text"),
    [
        ("localhost:11434", "*/*", b"Ollama is running"),
        ("localhost:11434", "text/html", b"<!doctype html>"),
        ("localhost:8000", "*/*", b'{"name":"lean_ovms"'),
        ("", "", b'{"name":"lean_ovms"'),
    ],
)
async def test_the_root_on_ollamas_port(make_app: MakeApp, host: str, accept: str, text: bytes) -> None:
    app, _ = await make_app(ollama_port=11434)
    response = await get(app, "/", host=host, accept=accept)
    assert isinstance(response.body, bytes)
    assert response.body.lower().startswith(text.lower())
    app, _ = await make_app(ollama_port=11434, web_page=False)
    assert (await get(app, "/", host="localhost:11434", accept="text/html")).body == b"Ollama is running"
    assert (await whole(await get(app, "/", host="localhost:8000", accept="text/html")))["name"] == "lean_ovms"


NO_SUCH: list[tuple[str, str, int]] = [
    ("POST", "/api/copy", 501),
    ("POST", "/api/create", 501),
    ("POST", "/api/push", 501),
    ("POST", "/api/blobs/sha256:00", 501),
    ("HEAD", "/api/blobs/sha256:00", 501),
    ("POST", "/api/me", 404),
    ("GET", "/api/chat", 405),
]


async def test_what_is_not_supported_has_ollamas_form(make_app: MakeApp) -> None:
    app, _ = await make_app()
    for method, path, expected in NO_SUCH:
        status, message = await error(await app.handle(Request(method, path)))
        assert (status, message.partition(" is not supported")[0] == path) == (expected, expected == 501)
