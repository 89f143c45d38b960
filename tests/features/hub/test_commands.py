"""The command line with a hub: what is pulled, converted and served, its output and exit status."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import StartError
from lean_ovms.features.deployment.desired import desired_state, fetched, server_config
from lean_ovms.features.hub import pull
from lean_ovms.features.ovms_files.pbtxt import node_options
from tests.cli.conftest import Ending, Run
from tests.features.hub.conftest import model_files
from tests.features.hub.hub_server import Fault, HubServer, Repo

PULL = ("--pull", "--source_model", "org/model", "--model_repository_path", "models")


@pytest.fixture
def run(run: Run, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line with the hub of these tests."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("GIT_LFS_RESUME_INTERVAL_SECONDS", "0")
    return run


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
def test_options_of_a_conversion_reach_optimum(
    run: Run, tmp_path: Path, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repos["org/torch"] = Repo({"model.safetensors": b"x"})
    asked: list[Any] = []

    def convert(repo: str, directory: Path, weight_format: str, extra: str, *, task: str) -> None:
        asked.append((repo, weight_format, extra, task))
        shutil.copytree(DEMO_MODEL, directory)

    monkeypatch.setattr("lean_ovms.features.hub.convert.available", lambda: True)
    monkeypatch.setattr("lean_ovms.features.hub.convert.convert", convert)
    argv = ("--pull", "--source_model", "org/torch", *PULL[3:], "--weight-format", "int4")
    assert run(*argv, "--extra_quantization_params", "--sym --group-size -1") == 0
    assert asked == [("org/torch", "int4", "--sym --group-size -1", "")]
    assert run(*argv, "--overwrite_models", "--task", "text2speech", "--vocoder", "org/hifigan") == 0
    assert asked[1:] == [("org/torch", "int4", """--model-kwargs '{"vocoder": "org/hifigan"}'""", "text2speech")]
    task, options = node_options((tmp_path / "models/org/torch/graph.pbtxt").read_text())
    assert (task.name, options["models_path"]) == ("text2speech", "./")


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
    assert run("pull", "org/model") == 3
    assert "give another --model_repository_path" in capsys.readouterr().err


@pytest.mark.slow
def test_source_model_is_pulled_and_served_by_its_graph(run: Run, served: list[Config]) -> None:
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


@pytest.mark.slow
def test_a_revision_has_a_directory_of_its_own(
    run: Run, served: list[Config], server: HubServer, tmp_path: Path
) -> None:
    server.repos["org/model@refs/pr/1"] = Repo(model_files(b"older"))
    argv = ("serve", "org/model", "--model_repository_path", "models")
    assert run(*argv) == run(*argv, "--revision", "refs/pr/1") == 0
    (spec,) = desired_state(served[1]).models
    assert (spec.name, spec.config.model_dir) == ("org/model", Path("models/org/model@refs-pr-1"))
    found = [tmp_path / "models/org" / name / "openvino_model.bin" for name in ("model", "model@refs-pr-1")]
    assert [file.read_bytes() for file in found] == [server.repos["org/model"].files["openvino_model.bin"], b"older"]
    server.seen.clear()
    assert run(*argv, "--revision", "refs/pr/1") == 0
    assert server.seen == []


def test_a_gguf_file_of_a_revision_is_found_by_its_quantization(
    run: Run, served: list[Config], server: HubServer
) -> None:
    server.repos["org/quants"] = Repo({"m-Q8_0.gguf": b"g"})
    server.repos["org/quants@v1"] = Repo({"m-Q4_K_M.gguf": b"g"})
    assert run("-hf", "org/quants:Q4_K_M", "--revision", "v1", "--model_repository_path", "models") == 0
    (spec,) = desired_state(served[0]).models
    assert Path(spec.config.model_path) == Path("models/org/quants@v1/m-Q4_K_M.gguf")


def test_a_gguf_file_is_pulled_and_served(run: Run, served: list[Config], server: HubServer) -> None:
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
from lean_ovms.features.hub import pull

number = int(sys.argv[1])
before = signal.getsignal(number)
pull.file_name = lambda *_: ""
pull.pull = lambda *_: os.kill(os.getpid(), number)
status = commands.run(parse(sys.argv[2:], {}))
assert signal.getsignal(number) is before
sys.exit(status)
"""


@pytest.mark.parametrize(("number", "argv"), [(signal.SIGINT, PULL), (signal.SIGTERM, PULL[1:])])
@pytest.mark.slow
def test_a_pull_that_is_stopped_says_how_to_go_on(number: int, argv: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", STOPPED, str(int(number)), *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert "run the same command again to continue" in done.stderr


def test_a_checkpoint_is_served_from_its_conversion(
    run: Run, served: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/model.safetensors").touch()
    monkeypatch.setattr("lean_ovms.features.hub.convert.find_program", lambda _: None)
    assert run("serve", "./m", "--weight_format", "int4") == 3
    shutil.copytree(DEMO_MODEL, tmp_path / "m-ov")
    assert run("serve", "./m", "--weight_format", "int4", "--cache_size", "1") == 0
    assert run("serve", "./m-ov", "--model_name", "x") == 0
    found = [(Path(config.model_path), config.model_name, config.cache_size) for config in served]
    assert found == [(tmp_path / "m-ov", "m", 1), (Path("m-ov"), "x", 0)]
    assert run("serve", "./m-ov", "--weight_format", "int4") == 2


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ((*PULL[:2], "org/none", *PULL[3:]), 3, "there is no model org/none"),
        (("--source_model", "org/none", *PULL[3:]), 3, "cannot start: there is no model org/none"),
        (("--source_model", "../x", *PULL[3:]), 3, "not a model name"),
        ((*PULL, "--weight-format", "int4"), 3, "--weight-format"),
        ((*PULL, "--list_models"), 2, "--pull and --list_models cannot be used together"),
        (("--pull", "--model_repository_path", "models"), 2, "--pull needs --source_model"),
        (("serve", "org/none", "--task", "rerank", "--normalize", "true"), 2, "--normalize cannot be used with --task"),
        (("pull", "org/none", "--task", "rerank", "--normalize", "true"), 2, "--normalize cannot be used with --task"),
        (("serve", "./m", "--vocoder", "x"), 2, "--vocoder needs --source_model"),
        (("serve", "./m", "--revision", "v1"), 2, "--revision needs --source_model"),
        ((*PULL, "--revision", "v1"), 3, "org/model has no revision v1 at http://127.0.0.1"),
        ((*PULL, "--revision", "../v1"), 3, "--revision ../v1 is not a branch, a tag or a commit"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(ends_with: Ending, argv: tuple[str, ...], status: int, message: str) -> None:
    ends_with(argv, status, message)


def test_options_of_a_pull_reach_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    orders: list[pull.PullRequest] = []

    class Enough(Exception):
        pass

    def instead(order: pull.PullRequest, hub: Any) -> None:
        orders.append(order)
        raise Enough

    monkeypatch.setattr(pull, "pull", instead)
    monkeypatch.setattr(pull, "file_name", lambda source, target, name, *_: name)
    config = Config(
        source_model="org/m",
        model_repository_path=str(tmp_path),
        overwrite_models=True,
        weight_format="int4",
        extra_quantization_params="--sym",
    )
    with pytest.raises(Enough):
        fetched(config)
    assert (orders[0].overwrite, orders[0].weight_format, orders[0].extra) == (True, "int4", "--sym")


def test_without_the_hub_a_model_is_served_that_is_there(run: Run, server: HubServer, served: list[Config]) -> None:
    without = ("--without", "hub", "--model_repository_path", "models")
    shutil.copytree(DEMO_MODEL, "models/org/m")
    assert run("serve", "org/m", *without) == 0
    [spec] = desired_state(server_config(served[0])).models
    assert spec.config.model_dir == Path("models/org/m")
    with pytest.raises(StartError, match="unrecognized arguments"):
        run("pull", "org/m", *without)
    with pytest.raises(StartError, match="this server does not pull models"):
        run("serve", "org/m", "--draft_source_model", "org/d", *without)
    assert server.seen == []
