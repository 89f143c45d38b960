"""The command line: its output and its exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lean_ovms.cli import main
from tests.cli.conftest import Ending


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("--source_model", "org/model", "--model_path", "x"), 2, "--source_model and --model_path cannot"),
        (("serve", "org/none", "--api_key_file", "none"), 2, "--api_key_file none: No such file"),
        (("serve", "org/none", "--override_generation_config", '{"top_p": 2}'), 2, "_generation_config: top_p"),
        (("--gguf_filename", "x.gguf"), 2, "--gguf_filename needs --source_model"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(ends_with: Ending, argv: tuple[str, ...], status: int, message: str) -> None:
    ends_with(argv, status, message)


@pytest.mark.slow
def test_the_console_command_lists_without_loading_anything_heavy(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/graph.pbtxt").touch()
    code = (
        "import sys; from lean_ovms.cli.main import main\n"
        f"sys.argv = ['lean_ovms', '--list_models', '--model_repository_path', {str(tmp_path)!r}]\n"
        "try: main()\n"
        "except SystemExit as end: print(int(end.code), *({*sys.modules} & {'uvloop', 'openvino', 'huggingface_hub'}))"
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
