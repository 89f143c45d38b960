"""The command line: pull, pull and serve, list, configure, edit; what it prints and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli import commands, main
from lean_ovms.cli.arguments import parse
from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.deployment.desired import desired_state
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from lean_ovms.repository.pbtxt import node_options
from tests.hub.conftest import model_files
from tests.hub.hub_server import Fault, HubServer, Repo

Run = Callable[..., int]


@pytest.fixture
def run(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The exit status of a command line in tmp_path; `served` gets the options that would be served."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("GIT_LFS_RESUME_INTERVAL_SECONDS", "0")
    monkeypatch.delenv("OVMS_MODEL_REPOSITORY_PATH", raising=False)
    monkeypatch.setattr(commands.log, "setup", lambda *_, **__: None)  # loggers are the process's
    return lambda *argv: commands.run(parse(argv, os.environ))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    found: list[Config] = []

    def serve(config: Config) -> int:
        found.append(config)
        return 0

    monkeypatch.setattr("lean_ovms.server.run.run", serve)
    return found


PULL = ("--pull", "--source_model", "org/model", "--model_repository_path", "models")


@pytest.mark.slow
def test_pull_downloads_writes_the_graph_and_ends(
    run: Run, tmp_path: Path, served: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*PULL, "--task", "text_generation", "--cache_size", "3", "--target_device", "GPU") == 0
    assert served == []
    options = node_options((tmp_path / "models/org/model/graph.pbtxt").read_text())[1]
    assert options == {"models_path": "./", "device": "GPU", "cache_size": 3, "max_num_seqs": 256,
                       "enable_prefix_caching": True}  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "Model: org/model downloaded to: models/org/model",
        "Graph: graph.pbtxt created in: models/org/model",
    ]


@pytest.mark.slow
def test_the_same_pull_again_only_updates_the_graph(run: Run, tmp_path: Path, server: HubServer) -> None:
    run(*PULL)
    graph = tmp_path / "models/org/model/graph.pbtxt"
    first = graph.read_text()
    server.seen.clear()
    assert run(*PULL, "--max_num_seqs", "8") == 0
    assert server.seen == []
    assert node_options(graph.read_text())[1]["max_num_seqs"] == 8
    assert graph.with_suffix(".pbtxt.bak").read_text() == first


@pytest.mark.slow
def test_overwriting_pulls_anew(run: Run, tmp_path: Path, server: HubServer) -> None:
    run(*PULL)
    server.repos["org/model"].files["config.json"] = b'{"new": 1}'
    assert run(*PULL, "--overwrite_models") == 0
    assert (tmp_path / "models/org/model/config.json").read_bytes() == b'{"new": 1}'


@pytest.mark.slow
def test_options_of_a_conversion_reach_optimum(
    run: Run, tmp_path: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repos["org/torch"] = Repo({"model.safetensors": b"x"})
    asked: list[Any] = []

    def convert(repo: str, directory: Path, weight_format: str, extra: str, *, task: str) -> None:
        asked.append((repo, weight_format, extra, task))
        shutil.copytree(DEMO_MODEL, directory)

    monkeypatch.setattr("lean_ovms.hub.convert.available", lambda: True)
    monkeypatch.setattr("lean_ovms.hub.convert.convert", convert)
    argv = ("--pull", "--source_model", "org/torch", *PULL[3:], "--weight-format", "int4")
    assert run(*argv, "--extra_quantization_params", "--sym --group-size -1") == 0
    assert asked == [("org/torch", "int4", "--sym --group-size -1", "")]
    assert run(*argv, "--overwrite_models", "--task", "text2speech", "--vocoder", "org/hifigan") == 0
    assert asked[1:] == [("org/torch", "int4", """--model-kwargs '{"vocoder": "org/hifigan"}'""", "text2speech")]
    task, options = node_options((tmp_path / "models/org/torch/graph.pbtxt").read_text())
    assert (task.name, options["models_path"]) == ("text2speech", "./")


def test_a_graph_of_another_task_is_written_by_its_files(run: Run, tmp_path: Path) -> None:
    shutil.copytree(DEMO_EMBED, tmp_path / "m")
    assert run("--configure", "--model_path", "m", "--pooling", "LAST", "--num_streams", "2") == 0
    task, options = node_options((tmp_path / "m" / "graph.pbtxt").read_text())
    assert (task.name, options["pooling"], options["plugin_config"]) == ("embeddings", "LAST", '{"NUM_STREAMS": 2}')


@pytest.mark.slow
def test_model_name_stands_in_for_source_model(run: Run, tmp_path: Path) -> None:
    assert run("--pull", "--model_name", "org/model", "--model_repository_path", "models") == 0
    assert (tmp_path / "models/org/model/openvino_model.bin").exists()


@pytest.mark.slow
def test_without_a_repository_models_are_pulled_to_the_users_cache(
    run: Run, served: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run("list") == 0
    assert capsys.readouterr().out == ""
    assert run("serve", "org/model", "--port", "0") == 0
    assert served[0].model_dir == tmp_path / "cache/lean_ovms/models/org/model"
    assert (served[0].served_name, served[0].rest_port) == ("org/model", 0)
    assert run("list") == 0
    assert capsys.readouterr().out == "org/model\n"


def test_a_cache_that_cannot_be_made_stops_the_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert run("pull", "org/model") == 1
    assert "give another --model_repository_path" in capsys.readouterr().err


@pytest.mark.slow
def test_source_model_is_pulled_and_served_by_its_graph(run: Run, served: list[Config], tmp_path: Path) -> None:
    argv = ("--source_model", "org/model", "--model_repository_path", "models", "--rest_port", "0")
    assert run(*argv, "--task", "text_generation", "--kv_cache_precision", "u8", "--prompt_lookup", "true") == 0
    (config,) = served
    (spec,) = desired_state(config).models
    assert spec.problem is None
    assert (spec.name, spec.config.model_dir) == ("org/model", Path("models/org/model"))
    assert spec.config.plugin_config == '{"KV_CACHE_PRECISION": "u8"}'
    assert (spec.config.kv_cache_precision, spec.config.value("prompt_lookup"), config.rest_port) == ("", True, 0)
    run(*argv, "--model_name", "m")
    assert served[1].served_name == "m"


def test_a_gguf_file_is_pulled_and_served(run: Run, served: list[Config], server: HubServer, tmp_path: Path) -> None:
    server.repos["org/quants"] = Repo({"Q4/a.gguf": b"g" * 100})
    argv = ("--source_model", "org/quants", "--model_repository_path", "models", "--gguf_filename", "Q4/a.gguf")
    assert run(*argv) == 0
    (spec,) = desired_state(served[0]).models
    assert Path(spec.config.model_path) == Path("models/org/quants/Q4/a.gguf")
    assert spec.name == "org/quants"


@pytest.mark.slow
def test_a_draft_is_pulled_into_the_model(run: Run, served: list[Config], server: HubServer, tmp_path: Path) -> None:
    server.repos["org/draft"] = Repo(model_files(b"small"))
    argv = ("--source_model", "org/model", "--model_repository_path", "models", "--draft_source_model", "org/draft")
    assert run(*argv, "--draft_device", "GPU") == 0
    assert (tmp_path / "models/org/model/org-draft/openvino_model.bin").read_bytes() == b"small"
    (spec,) = desired_state(served[0]).models
    assert Path(spec.config.value("draft_model_path")) == Path("models/org/model/org-draft")
    assert spec.config.value("draft_device") == "GPU"


@pytest.mark.slow
def test_the_repository_may_come_from_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVMS_MODEL_REPOSITORY_PATH", str(tmp_path / "models"))
    assert run("--pull", "--source_model", "org/model") == 0
    assert run("--add_to_config", "--model_name", "org/model") == 0
    capsys.readouterr()
    assert run("--list_models") == 0
    assert capsys.readouterr().out == "org/model\n"
    config = json.loads((tmp_path / "models/config.json").read_text())
    assert config == {"model_config_list": [{"config": {"name": "org/model", "base_path": "org/model"}}]}


def test_a_repository_without_models_is_an_empty_list_with_a_note(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--list_models", "--model_repository_path", str(tmp_path)) == 0
    assert capsys.readouterr() == ("", f"lean_ovms: there is no model in {tmp_path}\n")


# --- endings


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ((*PULL[:2], "org/none", *PULL[3:]), 1, "there is no model org/none"),
        (("--source_model", "org/none", *PULL[3:]), 3, "cannot start: there is no model org/none"),
        (("--source_model", "../x", *PULL[3:]), 3, "not a model name"),
        ((*PULL, "--weight-format", "int4"), 1, "--weight-format"),
        ((*PULL, "--list_models"), 2, "--pull and --list_models exclude each other"),
        (("--pull", "--model_repository_path", "models"), 2, "--pull needs --source_model"),
        (("--source_model", "org/model", "--model_path", "x"), 2, "--source_model and --model_path exclude"),
        (("--source_model", "org/model", "--config_path", "x"), 2, "--source_model and --config_path exclude"),
        (("--source_model", "o/m", "--list_models"), 2, "--source_model and --list_models exclude"),
        (("serve", "org/none", "--task", "rerank", "--normalize", "true"), 2, "--normalize is not an option of --task"),
        (("pull", "org/none", "--task", "rerank", "--normalize", "true"), 2, "--normalize is not an option of --task"),
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
def test_what_is_wrong_is_said_in_one_line(
    run: Run, argv: tuple[str, ...], status: int, message: str, capsys: pytest.CaptureFixture[str], served: list[Config]
) -> None:
    assert run(*argv) == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lean_ovms: ")
    assert message in last
    assert served == []


def test_trouble_that_may_pass_has_another_status_than_trouble_that_will_not(
    run: Run, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_LFS_RESUME_ATTEMPTS", "1")
    server.repos["org/model"].faults[""] = [Fault(status=503)] * 9
    assert run("--source_model", "org/model", "--model_repository_path", "models") == 1


STOPPED = """
import os, signal, sys
from lean_ovms.cli import commands
from lean_ovms.cli.arguments import parse
from lean_ovms.hub import pull

number = int(sys.argv[1])
before = signal.getsignal(number)
pull.gguf_name = lambda *_: ""
pull.pull = lambda *_: os.kill(os.getpid(), number)
status = commands.run(parse(sys.argv[2:], {}))
assert signal.getsignal(number) is before
sys.exit(status)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("argv", [PULL, PULL[1:]], ids=["pull", "serve"])
@pytest.mark.slow
def test_a_pull_that_is_stopped_says_how_to_go_on(number: int, argv: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", STOPPED, str(int(number)), *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert "the same command goes on from here" in done.stderr


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


def test_a_checkpoint_is_served_from_its_conversion(
    run: Run, served: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/model.safetensors").touch()
    monkeypatch.setattr("lean_ovms.hub.convert.find_program", lambda _: None)
    assert run("serve", "./m", "--weight_format", "int4") == 3
    shutil.copytree(DEMO_MODEL, tmp_path / "m-ov")
    assert run("serve", "./m", "--weight_format", "int4", "--cache_size", "1") == 0
    assert run("serve", "./m-ov", "--model_name", "x") == 0
    found = [(Path(config.model_path), config.model_name, config.cache_size) for config in served]
    assert found == [(tmp_path / "m-ov", "m", 1), (Path("m-ov"), "x", 0)]
    assert run("serve", "./m-ov", "--weight_format", "int4") == 2


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
