"""Command lines in an empty directory. Commands that talk to a server have one with scripted answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lean_ovms.cli import commands
from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.observability import logging
from tests.cli.scripted import ScriptedServer, scripted_server

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in tmp_path, and returns its exit status. `served` gets the options that would be served."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVMS_MODEL_REPOSITORY_PATH", raising=False)
    monkeypatch.setattr(logging, "setup", lambda *_, **__: None)  # loggers belong to the whole process
    return lambda *argv: commands.run(parse(argv, os.environ))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    found: list[Config] = []

    def serve(config: Config) -> int:
        found.append(config)
        return 0

    monkeypatch.setattr("lean_ovms.server.run.run", serve)
    return found


Ending = Callable[[Sequence[str], int, str], None]


@pytest.fixture
def ends_with(run: Run, served: list[Config], capsys: pytest.CaptureFixture[str]) -> Ending:
    """Checks that a command line serves nothing, and ends with a status and one line that contains a message."""

    def check(argv: Sequence[str], status: int, message: str) -> None:
        assert run(*argv) == status
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("lean_ovms: ")
        assert message in last
        assert served == []

    return check


@pytest.fixture
def script() -> Iterator[ScriptedServer]:
    with scripted_server() as found:
        yield found
