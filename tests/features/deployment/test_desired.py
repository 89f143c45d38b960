"""Options, graphs and configuration files as a list of models, each with its own options."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError, WrongOptions
from lean_ovms.features.deployment.desired import DesiredState, ModelSpec, desired_state, server_config
from lean_ovms.features.foreign_flags import command_line as foreign_flags
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from lean_ovms.repository import model_dir
from lean_ovms.util.files import file_stat
from tests.features.ovms_files.graphs import graph


def only(config: Config) -> ModelSpec:
    [one] = desired_state(config).models
    return one


def test_without_anything_the_demo_models_are_served_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = server_config(Config(tool_parser="hermes3", rest_port=1))
    chat, embed = desired_state(config).models
    assert (chat.config, embed.name) == (config, "demo-embed")
    assert embed.config == Config(
        rest_port=1, model_path=str(DEMO_EMBED), model_name="demo-embed", task="embeddings", model_idle_timeout_s=300.0
    )
    assert (chat.on_demand, chat.permanent, embed.on_demand, embed.permanent) == (False, True, True, False)
    [line] = caplog.records
    assert line.levelname == "WARNING"
    assert "demo" in line.getMessage()
    assert "--model_path" in line.getMessage()


def test_a_name_alone_does_not_rename_the_demo_model() -> None:
    for name in ("m", "demo"):
        with pytest.raises(WrongOptions, match=f"--model_name {name} does not name a model here"):
            server_config(Config(model_name=name))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("b", "org/a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "openvino_model.xml").touch()
    (tmp_path / "a-graph").mkdir()
    (tmp_path / "a-graph" / "graph.pbtxt").write_text(graph('models_path: "./" max_num_seqs: 7'))
    return tmp_path


def of(repository: Path, **options: Any) -> DesiredState:
    return desired_state(server_config(Config(model_repository_path=str(repository), **options)))


@pytest.mark.parametrize("name", ["b", "org/a", "a-graph"])
def test_a_repository_and_a_name_are_that_model(repository: Path, name: str) -> None:
    found = of(repository, model_name=name)
    [one] = found.models
    assert (one.name, Path(one.config.model_path), found.required) == (name, repository / name, True)
    assert one.config.max_num_seqs == (7 if name == "a-graph" else 256)


def test_a_repository_alone_is_every_model_in_it(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    found = of(repository, max_prompts=3, tool_parser="hermes3")
    assert [(one.name, Path(one.config.model_path)) for one in found.models] == [
        (name, repository / name) for name in ("a-graph", "b", "org/a")
    ]
    assert [one.config.max_num_seqs for one in found.models] == [7, 256, 256]
    assert {one.config.value("tool_parser") for one in found.models} == {"hermes3"}
    assert (all(one.announced for one in found.models), found.required) == (True, False)
    [line] = caplog.messages
    assert line == f"{repository} has 3 models: a-graph, b, org/a"


def loading(found: DesiredState) -> str:
    """Returns a letter for each model: r if requests load it, s if it loads at the start, with P if it stays in
    memory."""
    return " ".join(("r" if one.on_demand else "s") + "P" * one.permanent for one in found.models)


@pytest.mark.parametrize(
    ("options", "loads"),
    [
        ({}, "r r r"),
        ({"load_models": "start"}, "sP sP sP"),
        ({"load_models": "start", "model_idle_timeout_s": 5.0}, "s s s"),
        ({"model_name": "b"}, "sP"),
        ({"model_name": "b", "model_idle_timeout_s": 5.0}, "s"),
        ({"model_name": "b", "load_models": "request"}, "r"),
    ],
)
def test_requests_load_the_models_of_a_repository_and_the_start_a_single_one(
    repository: Path, options: dict[str, Any], loads: str
) -> None:
    assert loading(of(repository, **options)) == loads
    assert [of(repository, max_loaded_models=most, **options).max_loaded for most in (0, 2)] == [0, 2]


def test_a_name_that_no_text_can_be_leaves_the_other_models(repository: Path) -> None:
    strange = repository / os.fsdecode(b"\xff")
    strange.mkdir()
    (strange / "openvino_model.xml").touch()
    assert [one.name for one in of(repository).models] == ["a-graph", "b", "org/a"]


def test_a_model_that_is_added_to_a_repository_is_noticed(repository: Path) -> None:
    before = of(repository).files
    assert before == of(repository).files
    (repository / "org" / "c").mkdir()
    (repository / "org" / "c" / "openvino_model.xml").touch()
    assert file_stat(repository / "org") != before[repository / "org"]
    assert [one.name for one in of(repository).models] == ["a-graph", "b", "org/a", "org/c"]


def test_the_config_json_of_a_model_is_not_that_of_a_repository(repository: Path) -> None:
    (repository / "b" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(WrongOptions, match="is a model, not a directory"):
        of(repository / "b")


def test_a_model_of_a_hub_is_served_where_it_was_pulled_to(repository: Path) -> None:
    [one] = of(repository, source_model="org/a").models
    assert (one.name, Path(one.config.model_path)) == ("org/a", repository / "org/a")
    assert [one.name for one in of(repository, source_model="org/a", model_name="x").models] == ["x"]
    with pytest.raises(WrongOptions, match="has no model 'org/n'"):
        of(repository, source_model="org/n")
    with pytest.raises(WrongOptions, match="--source_model needs --model_repository_path"):
        server_config(Config(source_model="org/a"))


def test_a_folder_with_one_gguf_model_is_that_model(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    for name in ("x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "mmproj-x.gguf"):
        (folder / name).touch()
    one = only(Config(model_path=str(folder)))
    assert (one.name, one.config.model_path) == ("small", str(folder / "x-00001-of-00002.gguf"))
    (folder / "Q8_0").mkdir()
    (folder / "Q8_0" / "y.gguf").touch()
    problem = only(Config(model_path=str(folder))).problem
    assert "several GGUF files; name one of them: Q8_0/y.gguf, x-00001-of-00002.gguf" in str(problem)
    (folder / "openvino_model.xml").touch()
    assert only(Config(model_path=str(folder))).config.model_path == str(folder)


def test_the_files_of_a_model_that_does_not_generate_tell_its_task(tmp_path: Path) -> None:
    for kind, task in (("SpeechT5ForTextToSpeech", "text2speech"), ("BertForTokenClassification", "token_classify")):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [kind]}))
        assert only(Config(model_path=str(tmp_path))).config.task == task
    assert only(Config(model_path=str(tmp_path), task="text_generation")).config.task == "text_generation"
    (tmp_path / "graph.pbtxt").write_text(
        'node { calculator: "EmbeddingsCalculatorOV" node_options { [type.googleapis.com / '
        'mediapipe.EmbeddingsCalculatorOVOptions]: { models_path: "./" normalize_embeddings: false pooling: LAST } } }'
    )
    found = only(Config(model_path=str(tmp_path))).config
    assert (found.task, found.value("normalize"), found.value("pooling")) == ("embeddings", "false", "LAST")


def test_a_flag_of_another_task_is_an_error() -> None:  # as in OVMS
    for options in ({"speed_max": 2.0}, {"voices": "{}"}, {"max_speech_characters": 5}):
        with pytest.raises(WrongOptions, match="cannot be used with --task embeddings, only with text2speech"):
            server_config(Config(model_path="m", task="embeddings", **options))
        server_config(Config(model_path="m", task="text2speech", num_streams=2, **options))
    with pytest.raises(WrongOptions, match="--normalize cannot be used with --task rerank, only with embeddings"):
        server_config(Config(model_path="m", task="rerank", normalize="true"))
    server_config(Config(model_path="m", task="rerank", max_allowed_chunks=3))


# --- config.json


def test_every_foreign_flag_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text("utf-8")
    flags = foreign_flags.known().of_ovms
    images = {name for name in flags if "resolution" in name or "image" in name or "inference" in name}
    for name in flags - images - {"guidance_scale"}:
        assert f"`--{name}`" in page


def test_a_link_to_itself_has_a_name_and_no_model(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    one = only(Config(model_path=str(tmp_path / "loop")))
    assert one.name == "loop"
    with pytest.raises(StartError, match="no such directory"):
        model_dir.read(one.config)
