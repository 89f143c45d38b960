"""The command that unloads a model of a running server."""

from __future__ import annotations

from collections import deque

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from lean_ovms.errors import StartError
from tests.cli.scripted import scripted_server


def test_stop_unloads_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    stop = commands()["stop"]
    with scripted_server() as script:
        script.answers["/models/unload"] = deque([{"success": True}, (404, {"error": {"message": "no m"}})])
        assert run_command(stop, ["m", script.url], {}) == 0
        assert script.bodies == [{"model": "m"}]
        assert run_command(stop, ["m", script.url], {}) == 1
        assert capsys.readouterr().err == "lean_ovms stop: 404 Not Found: no m\n"
        assert run_command(stop, [script.url], {}) == 2


def test_a_server_without_the_api_has_no_such_command() -> None:
    assert "stop" not in commands("llama_cpp")
    with pytest.raises(StartError, match="there is no directory or file stop"):
        parse(["stop", "--without", "llama_cpp"], {})
