"""lean-ovms run: which words are the model and which the prompt. No server is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from lean_ovms.features.terminal import chat, run
from tests.features.terminal.test_chat import Stdin


class Client:
    def model(self) -> str:
        return "m"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records what would be started and asked: the server's options, what is pulled, and the prompt."""
    found: list[Any] = []

    @contextmanager
    def server(options: Sequence[str], *_: object) -> Iterator[Client]:
        found.append(list(options))
        yield Client()

    def talk(_: object, prompt: str, __: Mapping[str, str]) -> int:
        found.append(prompt)
        return 0

    monkeypatch.setattr(run, "_server", server)
    monkeypatch.setattr(run, "fetched", lambda config: found.append(f"pull {config.source_model}:{config.model_file}"))
    monkeypatch.setattr(run, "set_up_log", lambda *_, **__: None)
    monkeypatch.setattr(chat, "talk", talk)
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    return found


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["demo", "Hi", "there"], [["demo"], "Hi there"]),
        (["demo", "--temp", "0.5", "Hi"], [["demo", "--temp", "0.5"], "Hi"]),
        (["-hf", "org/m:Q4_0", "Hi"], ["pull org/m:Q4_0", ["-hf", "org/m:Q4_0"], "Hi"]),
        (["Hi", "-hf", "org/m"], ["pull org/m:", ["-hf", "org/m"], "Hi"]),
        (["--hf-repo", "org/m", "Hi"], ["pull org/m:", ["--hf_repo", "org/m"], "Hi"]),
        (["-m", "DIR", "Hi", "there"], [["-m", "DIR"], "Hi there"]),
        (["org/m:Q4_0", "Hi"], ["pull org/m:Q4_0", ["org/m:Q4_0"], "Hi"]),
    ],
)
def test_a_word_is_the_model_unless_an_option_names_it(
    argv: list[str], expected: list[Any], started: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(terminal=True))
    environ = {"LEAN_OVMS_MODEL_REPOSITORY_PATH": str(tmp_path)}
    assert run_command(commands()["run"], [word.replace("DIR", str(tmp_path)) for word in argv], environ) == 0
    assert [word.replace(str(tmp_path), "DIR") if isinstance(word, str) else
            [part.replace(str(tmp_path), "DIR") for part in word] for word in started] == expected  # fmt: skip


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize("text", ["", " \n"])
def test_stdin_without_a_text_asks_nothing(
    command: str, text: str, started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(text))
    monkeypatch.setattr(chat, "connect", lambda *_: Client())
    monkeypatch.setattr(Client, "asked_for", lambda *_: "m", raising=False)
    assert run_command(commands()[command], ["demo"] if command == "run" else [], {}) == 2
    assert capsys.readouterr().err == (
        f"lean_ovms {command}: there is no prompt: give it after the model, or as text on stdin\n"
    )
    assert started == []
