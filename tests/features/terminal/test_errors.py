"""What goes wrong in a command for a running server is one line."""

from __future__ import annotations

import sys
from collections import deque

import pytest

from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from tests.cli.scripted import ScriptedServer
from tests.features.terminal.test_chat import Stdin

CASES: list[tuple[str, list[str], int, str]] = [
    ("chat", ["URL", "--model", "x", "hi"], 1, "URL has no model x; its models are: embedder, m"),
    ("chat", ["URL", "hi"], 1, "400 Bad Request: too long"),
    ("chat", ["URL", "hi"], 1, "the stream of URL/v1/chat/completions has an event that is not a JSON object"),
    ("chat", ["http://127.0.0.1:1", "hi"], 1, "no answer from http://127.0.0.1:1: Connection refused"),
    ("chat", ["http://", "hi"], 2, "http:// is not the address of a server"),
    ("chat", ["http://[::1", "hi"], 2, "http://[::1 is not the address of a server"),
    ("chat", ["http://m:port", "hi"], 2, "http://m:port has no valid port"),
    ("chat", ["URL", "--sytem", "x"], 2, "unrecognized arguments: --sytem (did you mean --system?)"),
    ("bench", ["--num_prompts", "0"], 2, "--num_prompts must be at least 1"),
    ("bench", ["--num_promts", "3"], 2, "unrecognized arguments: --num_promts (did you mean --num_prompts?)"),
    ("bench", ["URL", "somewhere"], 2, "somewhere is not the address of a server"),
    ("bench", ["--num_prompts", "x"], 2, "argument --num_prompts: invalid int value: 'x'"),
    (
        "launch",
        ["claude", "URL"],
        1,
        "claude is not installed; to install it: npm install -g @anthropic-ai/claude-code",
    ),
    ("launch", ["claud", "URL"], 2, "there is no agent claud (did you mean claude?)"),
    ("launch", ["vim", "URL"], 2, "there is no agent vim (there are claude, codex, opencode, copilot, aider, qwen)"),
    (
        "launch",
        ["aider", "URL", "--print", "x.py"],
        2,
        "unrecognized arguments: x.py (arguments for aider must follow --)",
    ),
    ("launch", ["aider", "unix:/s", "--print"], 2, "an agent cannot use a Unix socket; start the server with a port"),
    ("launch", ["aider", "URL", "--print", "--model", "x"], 1, "URL has no model x; its models are: embedder, m"),
]
OTHERS = ({"object": "list"}, {"data": {"id": "m"}}, {"data": ["m"]}, {"data": [{"name": "m"}]})
"""What servers without OpenAI's API may answer to a request for the list of models."""


@pytest.mark.slow
def test_what_went_wrong_is_one_line(
    script: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(terminal=True))
    script.answers["/v1/chat/completions"] = deque([(400, {"error": {"message": "too long"}}), [5]])
    script.answers["/v1/completions"] = deque([[{"choices": [{"text": "a"}]}]])
    for name, argv, status, message in CASES:
        words = [word.replace("URL", script.url) for word in argv]
        assert run_command(commands()[name], words, {"PATH": "/nowhere"}) == status
        error = capsys.readouterr().err
        assert error.startswith(f"lean_ovms {name}: {message.replace('URL', script.url)}")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["chat", "URL", "hi"], ["ps", "URL"], ["bench", "URL"], ["launch", "aider", "URL", "--print"]]
)
def test_another_kind_of_server_is_one_line(
    script: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(terminal=True))
    name, *words = (word.replace("URL", script.url) for word in argv)
    for answer in OTHERS:
        script.answers["/v1/models"] = deque([answer])
        assert run_command(commands()[name], words, {}) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"lean_ovms {name}: {script.url}/v1/models is not a list of models")
        assert error.count("\n") == 1
