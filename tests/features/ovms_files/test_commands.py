"""The commands that write graphs and configuration files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.features.deployment.desired import desired_state, server_config, write_settings
from lean_ovms.features.ovms_files.pbtxt import node_options
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from tests.cli.conftest import Ending, Run


def test_a_graph_of_another_task_is_written_by_its_files(run: Run, tmp_path: Path) -> None:
    shutil.copytree(DEMO_EMBED, tmp_path / "m")
    assert run("--configure", "--model_path", "m", "--pooling", "LAST", "--num_streams", "2") == 0
    task, options = node_options((tmp_path / "m" / "graph.pbtxt").read_text())
    assert (task.name, options["pooling"], options["plugin_config"]) == ("embeddings", "LAST", '{"NUM_STREAMS": 2}')


def test_configure_writes_the_graph_beside_the_model(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DEMO_MODEL, tmp_path / "m")
    argv = ("--configure", "--model_path", "m", "--task", "text_generation", "--cache_size", "5")
    assert run(*argv, "--cache_dir", ".ov_cache") == 0
    options = node_options((tmp_path / "m/graph.pbtxt").read_text())[1]
    assert (options["models_path"], options["cache_size"]) == ("./", 5)
    assert json.loads(options["plugin_config"]) == {"CACHE_DIR": ".ov_cache"}
    assert capsys.readouterr().out == "Graph: graph.pbtxt created in: m\n"


def test_configure_of_a_gguf_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a.gguf").touch()
    assert run("--configure", "--model_path", "m/a.gguf") == 0
    assert node_options((tmp_path / "m/graph.pbtxt").read_text())[1]["models_path"] == "./a.gguf"


def test_a_model_path_is_written_as_given_with_a_note_when_nothing_is_there(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--add_to_config", "c.json", "--model_name", "m", "--model_path", "/not/yet")
    assert run(*argv) == 0
    assert json.loads((tmp_path / "c.json").read_text())["model_config_list"][0]["config"]["base_path"] == "/not/yet"
    assert "/not/yet does not exist yet" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "spelled",
    [
        ("--add_to_config", "--config_path", "models/config.json"),
        ("--add_to_config", "models/config.json"),
        ("--add-to-config=models",),
    ],
)
def test_models_are_added_and_removed(
    run: Run, tmp_path: Path, spelled: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models/org/m").mkdir(parents=True)
    named = ("--model_name", "org/m")
    options = ("--target_device", "GPU", "--plugin_config", '{"NUM_STREAMS": "1"}')
    for _ in range(2):
        assert run(*spelled, *named, "--model_repository_path", "models", *options) == 0
    file = tmp_path / "models/config.json"
    entry = {"name": "org/m", "base_path": "org/m", "target_device": "GPU", "plugin_config": {"NUM_STREAMS": "1"}}
    assert json.loads(file.read_text()) == {"model_config_list": [{"config": entry}]}
    for _ in range(2):
        assert run("--remove_from_config", "models/config.json", *named) == 0
    assert json.loads(file.read_text()) == {"model_config_list": []}
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "Config updated: models/config.json",
        "org/m is already in models/config.json",
        "Config updated: models/config.json",
        "org/m is not in models/config.json, which has no models",
    ]


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("--configure",), 2, "--configure needs --model_path"),
        (("--configure", "--model_path", "none"), 1, "there is no model at none"),
        (("--configure", "--model_path", "x", "--model_name", "m"), 2, "a graph contains no name"),
        (
            ("--configure", "--model_path", "x", "--list_models"),
            2,
            "--configure and --list_models cannot be used together",
        ),
        (("--configure", "--source_model", "org/m"), 2, "--source_model and --configure cannot be used together"),
        (("--source_model", "org/model", "--config_path", "x"), 2, "--source_model and --config_path cannot be used"),
        (("--add_to_config", "--config_path", "c.json"), 2, "--add_to_config needs --model_name"),
        (("--add_to_config", "--model_name", "m"), 2, "--add_to_config needs --config_path"),
        (("--add_to_config", "c.json", "--model_name", "m"), 2, "needs --model_path or --model_repository_path"),
        (("--add_to_config", "c", "--model_name", "m", "--gguf_filename", "x"), 2, "needs --source_model"),
        (("--remove_from_config", "c.json", "--model_name", "m"), 1, "the configuration file c.json does not exist"),
        (("--remove_from_config", "c", "--model_name", "m", "--model_path", "m"), 2, "cannot be used together"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(ends_with: Ending, argv: tuple[str, ...], status: int, message: str) -> None:
    ends_with(argv, status, message)


def test_a_server_without_these_files_keeps_the_options_of_what_it_pulled(tmp_path: Path) -> None:
    config = Config(without="ovms_files", source_model="o/m", model_repository_path="r", cache_size=3)
    kept = write_settings(config, tmp_path, {"draft_model_path": "d"}, "m")
    assert list(tmp_path.iterdir()) == []
    assert kept == Config(
        without="ovms_files",
        model_path=str(tmp_path),
        model_name="m",
        draft_model_path=str(tmp_path / "d"),
        cache_size=3,
    )


def test_a_server_without_these_files_serves_a_directory_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "graph.pbtxt").write_text("nonsense {")
    (tmp_path / "config.json").write_text("{}")
    [one] = desired_state(server_config(Config(without="ovms_files", model_path=str(tmp_path)))).models
    assert (one.problem, one.config.model_path) == (None, str(tmp_path))
