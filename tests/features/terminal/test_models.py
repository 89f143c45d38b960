"""list, show, rm and ps: their output, and errors in one line."""

from __future__ import annotations

import json
import re
import shutil
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from lean_ovms.config import DEMO_MODEL
from lean_ovms.engine.loading import settings
from lean_ovms.features.pooling.model import DEMO as DEMO_EMBED
from tests.cli.scripted import MODELS, ScriptedServer

Capture = pytest.CaptureFixture[str]
DRAFT = Path(__file__).parents[2] / "data" / "demo_draft"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository of two models."""
    for source, name in ((DEMO_MODEL, "org/chat"), (DEMO_EMBED, "org/embed")):
        shutil.copytree(source, tmp_path / name)
    return tmp_path


def run(name: str, *argv: str) -> int:
    return run_command(commands()[name], argv, {})


def test_list_has_size_precision_task_and_date(models: Path, capsys: Capture) -> None:
    assert run("list", "--download-dir", str(models)) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "SIZE", "WEIGHTS", "TASK", "CHANGED"]
    assert re.fullmatch(r"org/chat +\d\.\d MB +u8 +text_generation +\d{4}-\d\d-\d\d", rows[0])
    assert re.fullmatch(r"org/embed +\d\.\d MB +i8 +embeddings +\d{4}-\d\d-\d\d", rows[1])


def test_rm_deletes_a_model_and_then_its_organisation(models: Path, capsys: Capture) -> None:
    option = ("--model_repository_path", str(models))
    assert run("rm", "org/chat", "org/chta", *option) == 2
    assert "has no model org/chta (did you mean org/chat?)" in capsys.readouterr().err
    assert run("rm", "org/chat", *option) == 0
    assert f"deleted {models}/org/chat (" in capsys.readouterr().out
    assert [path.name for path in (models / "org").iterdir()] == ["embed"]
    assert run("rm", *option, "org/embed") == 0
    assert list(models.iterdir()) == []


def test_rm_keeps_the_directory_of_models(models: Path) -> None:
    option = ("--model_repository_path", str(models / "org"))
    assert run("rm", "chat", "embed", *option) == 0
    assert list((models / "org").iterdir()) == []
    assert run("list", *option) == 0


def test_rm_deletes_nothing_else_and_of_a_link_only_the_link(models: Path) -> None:
    (models / "link").symlink_to(models / "org" / "chat")
    assert run("rm", "link", "--model_repository_path", str(models)) == 0
    for name in ("org", "..", "../x", "org/chat/..", ""):
        assert run("rm", name, "--model_repository_path", str(models / "org")) == 2
    assert (models / "org/chat/config.json").is_file()
    assert not (models / "link").exists()


def test_files_of_models_are_listed_and_deleted_with_all_their_parts(tmp_path: Path, capsys: Capture) -> None:
    option = ("--model_repository_path", str(tmp_path))
    for name in ("x.gguf", "y-00001-of-00002.gguf", "y-00002-of-00002.gguf", "org/z/z.gguf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF" * 1000)
    assert run("list", *option) == 0
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["org/z", "4.0", "kB", "GGUF"],
        ["x.gguf", "4.0", "kB", "GGUF"],
        ["y-00001-of-00002.gguf", "8.0", "kB", "GGUF"],
    ]
    assert run("rm", "y-00001-of-00002.gguf", "org/z", *option) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def shown(capsys: Capture) -> dict[str, str]:
    """Returns the facts by name."""
    return dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())  # type: ignore[misc]


def test_show_says_how_a_model_would_be_served(models: Path, capsys: Capture) -> None:
    argv = ("org/chat", "--model_repository_path", str(models), "--cache_size", "1", "--tool_parser", "none")
    assert run("show", *argv) == 0
    facts = {name: text.strip() for name, text in shown(capsys).items()}
    assert facts == {
        "model": f"{models}/org/chat",
        "task": "text_generation",
        "architecture": "Qwen3ForCausalLM, 5 layers",
        "weights": "u8, 1.8 MB",
        "engine": "PAGED on CPU: nothing in the options or the model needs another pipeline",
        "context": "131072 tokens",
        "KV cache": "800 bytes a token in u8; 1342177 tokens fit, 1.1 GB (--cache_size 1)",
        "chat template": "chat_template.jinja",
        "tool parser": "none",
        "reasoning parser": "qwen3",
    }


@pytest.mark.parametrize("pipeline", ["PAGED", "LM_CB"])
def test_a_cache_takes_its_share_of_the_memory(
    pipeline: str, models: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "free_memory_bytes", lambda: 4 << 30)
    assert run("show", str(models / "org/chat"), "--cache_memory_percent", "50", "--pipeline_type", pipeline) == 0
    tokens = int(shown(capsys)["KV cache"].split("; ")[1].split()[0])
    assert (2 << 30) - 800 * 32 <= tokens * 800 <= 2 << 30


def test_show_counts_the_tokens_of_a_draft_model_in_the_cache_that_it_shares(models: Path, capsys: Capture) -> None:
    argv = [str(models / "org/chat"), "--cache_size", "1", "--draft_model_path", str(DRAFT)]
    assert run("show", *argv) == 0
    assert "960 bytes a token in u8; 1118481 tokens fit" in shown(capsys)["KV cache"]
    assert run("show", *argv, "--draft_cache_size", "1") == 0
    assert "800 bytes a token in u8; 1342177 tokens fit" in shown(capsys)["KV cache"]


def test_show_of_a_revision(models: Path, capsys: Capture) -> None:
    (models / "org/chat").rename(models / "org/chat@a-b")
    assert run("show", "org/chat", "--revision", "a/b", "--model_repository_path", str(models)) == 0
    assert shown(capsys)["model"].strip() == str(models / "org/chat@a-b")


def test_show_of_other_choices(models: Path, capsys: Capture) -> None:
    path = models / "org" / "chat"
    described = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(described | {"model_type": "gpt_neo", "architectures": ["GPTNeo"]}))
    (path / "chat_template.jinja").unlink()
    assert run("show", str(path)) == 0
    facts = shown(capsys)
    assert "LM on CPU: the paged engine is not tested with models of the type gpt_neo" in facts["engine"]
    assert facts["chat template"].strip() == "openvino_tokenizer.xml"
    (path / "openvino_model.bin").write_bytes(b"")
    assert run("show", str(path)) == 0
    assert "openvino_model.bin is truncated, with 0 of " in shown(capsys)["weights"]


@pytest.mark.slow
def test_show_of_a_gguf_file(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("gguf")
    from tests.makers.make_gguf import make

    (tmp_path / "org/quants").mkdir(parents=True)
    path = make(tmp_path / "org/quants/demo-Q8_0.gguf")
    option = ("--model_repository_path", str(tmp_path))
    for argv in ((str(path),), ("org/quants", *option), ("hf.co/org/quants:q8_0", *option)):
        assert run("show", *argv) == 0
        facts = shown(capsys)
        assert (facts["model"].strip(), facts["weights"].split(",")[0].strip()) == (str(path), "GGUF")
        assert "PAGED on CPU" in facts["engine"]
    assert run("show", "org/quants:Q4_0", *option) == 2
    assert "has no Q4_0; it has demo-Q8_0.gguf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give a model: a directory, a GGUF file, or the name of a pulled one"),
        (["org/none"], "org/none has not been pulled: lean_ovms pull org/none"),
        (["org/none", "--without=hub"], "org/none has not been pulled\n"),
        (["org/chat", "--revision", "v1"], "org/chat@v1 has not been pulled: lean_ovms pull org/chat --revision v1"),
        (["./none"], "there is no model at none: no such directory"),
        (["."], "is not a complete OpenVINO model"),
        (["--pipline_type", "LM"], "unrecognized arguments: --pipline_type (did you mean --pipeline_type?)"),
    ],
)
def test_show_says_what_is_no_model(argv: list[str], message: str, models: Path, capsys: Capture) -> None:
    assert run_command(commands()["show"], argv, {"LEAN_OVMS_MODEL_REPOSITORY_PATH": str(models)}) == 2
    assert message in capsys.readouterr().err


def test_ps_shows_models_and_load(script: ScriptedServer, capsys: Capture) -> None:
    status = {"status": {"value": "loaded"}, "max_model_len": 4096, "generates_by": {"type": "PAGED"}}
    script.answers["/v1/models"] = deque([{"data": [MODELS["data"][0], MODELS["data"][1] | status]}])
    script.answers["/server_info"] = deque([{"load": {"running": 2, "waiting": 1, "kv_cache_usage": 0.5}}])
    assert run("ps", script.url) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME      STATE   TASK             CONTEXT  ENGINE",
        "embedder          embeddings",
        "m         loaded  text_generation  4096     PAGED",
        "2 requests running, 1 waiting, KV cache 50% used",
    ]
    script.answers["/server_info"] = deque([(404, {"detail": "Not Found"})])  # another kind of server
    assert run("ps", script.url) == 0


def test_programs_read_json(models: Path, script: ScriptedServer, capsys: Capture) -> None:
    """Each table that people read is available with the same names, and sizes in bytes."""

    def found(name: str, *argv: str) -> Any:
        assert run_command(commands()[name], [*argv, "--json"], {"LEAN_OVMS_MODEL_REPOSITORY_PATH": str(models)}) == 0
        return json.loads(capsys.readouterr().out)

    assert found("list", "--model_repository_path", str(models / "org/chat")) == []
    [row, *_] = found("list")
    assert set(row) == {"name", "size", "weights", "task", "changed"}
    assert type(row["size"]) is int
    assert found("show", "demo-embed")["task"] == "embeddings"
    script.answers["/server_info"] = deque([{"load": {"running": 1}}, (404, {})])
    assert found("ps", script.url) == {"models": MODELS["data"], "load": {"running": 1}}
    assert found("ps", script.url)["load"] is None
