"""--list_models: its output and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ending, Run


def test_a_repository_without_models_is_an_empty_list_with_a_note(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--list_models", "--model_repository_path", str(tmp_path)) == 0
    assert capsys.readouterr() == ("", f"lean_ovms: there is no model in {tmp_path}\n")


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("--source_model", "o/m", "--list_models"), 2, "--source_model and --list_models cannot be used"),
        (("--list_models", "--model_repository_path", "none"), 1, "none: no such directory"),
        (("--list_models", "--gguf_filename", "x.gguf"), 2, "--gguf_filename needs --source_model"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(ends_with: Ending, argv: tuple[str, ...], status: int, message: str) -> None:
    ends_with(argv, status, message)
