"""The command line: serve, list, configure, edit; what it prints and how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lean_ovms.cli import main
from lean_ovms.config import DEMO_MODEL
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from lean_ovms.repository.pbtxt import node_options
from tests.cli.conftest import Ending, Run


def test_a_graph_of_another_task_is_written_by_its_files(run: Run, tmp_path: Path) -> None:
    shutil.copytree(DEMO_EMBED, tmp_path / "m")
    assert run("--configure", "--model_path", "m", "--pooling", "LAST", "--num_streams", "2") == 0
    task, options = node_options((tmp_path / "m" / "graph.pbtxt").read_text())
    assert (task.name, options["pooling"], options["plugin_config"]) == ("embeddings", "LAST", '{"NUM_STREAMS": 2}')


def test_a_repository_without_models_is_an_empty_list_with_a_note(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--list_models", "--model_repository_path", str(tmp_path)) == 0
    assert capsys.readouterr() == ("", f"lean_ovms: there is no model in {tmp_path}\n")


# --- endings


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("--source_model", "org/model", "--model_path", "x"), 2, "--source_model and --model_path exclude"),
        (("--source_model", "org/model", "--config_path", "x"), 2, "--source_model and --config_path exclude"),
        (("--source_model", "o/m", "--list_models"), 2, "--source_model and --list_models exclude"),
        (("serve", "org/none", "--api_key_file", "none"), 2, "--api_key_file none: No such file"),
        (("serve", "org/none", "--override_generation_config", '{"top_p": 2}'), 2, "_generation_config: top_p"),
        (("--gguf_filename", "x.gguf"), 2, "--gguf_filename needs --source_model"),
        (("--list_models", "--model_repository_path", "none"), 1, "none: no such directory"),
        (("--configure",), 2, "--configure needs --model_path"),
        (("--configure", "--model_path", "none"), 1, "there is no model at none"),
        (("--configure", "--model_path", "x", "--model_name", "m"), 2, "a graph holds no name"),
        (("--add_to_config", "--config_path", "c.json"), 2, "--add_to_config needs --model_name"),
        (("--add_to_config", "--model_name", "m"), 2, "--add_to_config needs --config_path"),
        (("--add_to_config", "c.json", "--model_name", "m"), 2, "needs --model_path or --model_repository_path"),
        (("--remove_from_config", "c.json", "--model_name", "m"), 1, "there is no configuration file at c.json"),
        (("--remove_from_config", "c", "--model_name", "m", "--model_path", "m"), 2, "exclude each other"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(ends_with: Ending, argv: tuple[str, ...], status: int, message: str) -> None:
    ends_with(argv, status, message)


# --- configure, add, remove


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
        "org/m is in models/config.json already",
        "Config updated: models/config.json",
        "org/m is not in models/config.json, which has no models",
    ]


def test_a_model_path_is_written_as_given_with_a_note_when_nothing_is_there(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--add_to_config", "c.json", "--model_name", "m", "--model_path", "/not/yet")
    assert run(*argv) == 0
    assert json.loads((tmp_path / "c.json").read_text())["model_config_list"][0]["config"]["base_path"] == "/not/yet"
    assert "there is nothing at /not/yet yet" in capsys.readouterr().err


@pytest.mark.slow
def test_the_console_command_lists_without_loading_anything_heavy(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/graph.pbtxt").touch()
    code = (
        "import sys; from lean_ovms.cli.main import main\n"
        f"sys.argv = ['lean_ovms', '--list_models', '--model_repository_path', {str(tmp_path)!r}]\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, *({'uvloop', 'openvino', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["m", "0"]


@pytest.mark.parametrize(
    ("words", "early"),
    [
        ([], True),
        (["--model_path", "m"], True),
        (["serve", "m"], True),
        (["serve", "--help"], False),
        (["--list_models"], False),
        (["--pull", "--source_model", "a/b"], False),
        (["--fake-engine"], False),
        (["chat"], False),
    ],
)
def test_a_server_starts_its_engine_process_before_it_reads_its_options(
    words: list[str], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(sys, "argv", ["lean_ovms", *words])
    monkeypatch.setattr(main, "_exit_on_ctrl_c", lambda: None)
    monkeypatch.setattr(main, "_open_standard_streams", lambda: None)
    monkeypatch.setattr(main.prestart, "prestart", lambda **_: started.append("engine"))
    monkeypatch.setattr(main, "_main", lambda: started.append("options"))
    main.main()
    assert started == [*(["engine"] if early else []), "options"]
