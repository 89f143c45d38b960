"""The command that opens the documentation."""

from __future__ import annotations

from collections import deque

import pytest

from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from tests.cli.scripted import scripted_server


def docs(*argv: str) -> int:
    return run_command(commands()["docs"], argv, {})


@pytest.mark.parametrize(
    ("words", "path"), [((), "/docs/"), (("limit", "memory & more"), "/docs/search?q=limit+memory+%26+more")]
)
def test_the_documentation_is_opened(
    words: tuple[str, ...], path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with scripted_server() as script:
        script.answers[path] = deque([{}])
        assert docs(script.url, *words) == 0
        assert opened == [script.url + path]
        assert capsys.readouterr().out == f"{script.url}{path}\n"
        script.answers[path] = deque([(404, {"error": {"message": "Invalid request URL"}})])
        assert docs(script.url, *words) == 1
        assert "404" in capsys.readouterr().err
    assert docs(script.url) == 1
    assert "no answer from" in capsys.readouterr().err
    assert len(opened) == 1


def test_a_browser_opens_no_unix_socket(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs("--unix_socket", "/tmp/x") == 2
    assert "a browser cannot open a Unix socket" in capsys.readouterr().err
