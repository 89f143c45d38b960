"""The command that starts a coding agent for a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from lean_ovms.cli.commands import commands
from lean_ovms.cli.main import run_command
from lean_ovms.features.terminal.launch import AGENTS
from tests.cli.scripted import ScriptedServer, scripted_server

AGENT = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""


@pytest.fixture
def script() -> Iterator[ScriptedServer]:
    with scripted_server() as found:
        row = {"id": "org/m", "task": "text_generation", "max_model_len": 8192}
        found.answers["/v1/models"] = deque([{"data": [row]}])
        yield found


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A folder with programs that have the names of all agents."""
    for name in AGENTS:
        file = tmp_path / name
        file.write_text(AGENT)
        file.chmod(0o755)
    return str(tmp_path)


def launch(*argv: str, path: str = "/nowhere") -> int:
    return run_command(commands()["launch"], argv, {"PATH": path, "API_KEY": "k 1"})


@pytest.mark.parametrize("name", AGENTS)
def test_what_is_shown_is_what_a_shell_starts(
    name: str, script: ScriptedServer, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(name, script.url, "--print", "--", "two words") == 0
    shown = capsys.readouterr().out
    done = subprocess.run(["/bin/sh", "-c", shown], env={"PATH": path}, capture_output=True, text=True, check=True)
    arguments, environment = json.loads(done.stdout)
    assert arguments[-1] == "two words"
    assert "{" not in "".join(arguments)
    texts = json.dumps([arguments, {key: value for key, value in environment.items() if key != "PATH"}])
    assert all(text in texts for text in (script.url, "org/m", "k 1"))
    assert "k 1" not in "".join(arguments)  # all users of a machine can see a program's arguments


def test_a_context_that_is_not_known_is_not_told(script: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is not loaded has none. If Codex were told 0, it would shorten its conversation with each turn."""
    loaded, other = ({"id": "m", "task": "text_generation", "max_model_len": most} for most in (8192, None))
    for row, told in ((loaded, True), (other, False)):
        script.answers["/v1/models"] = deque([{"data": [row]}])
        assert launch("codex", script.url, "--print") == 0
        assert ("model_context_window=8192" in capsys.readouterr().out) == told
        assert launch("copilot", script.url, "--print") == 0
        lines = "export COPILOT_PROVIDER_MAX_PROMPT_TOKENS=6144\nexport COPILOT_PROVIDER_MAX_OUTPUT_TOKENS=2048\n"
        assert (lines in capsys.readouterr().out) == told
        assert launch("opencode", script.url, "--print") == 0
        limit = '{"context": 8192, "output": 2048}' if told else '{"context": 0, "output": 0}'
        assert f'"limit": {limit}' in capsys.readouterr().out


def test_claude_code_is_told_a_context_that_is_not_too_small(
    script: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It keeps 13,000 tokens free besides an answer, so with less it would shorten a first prompt that fits."""
    for most, told in ((None, False), (32768, False), (65536, True)):
        script.answers["/v1/models"] = deque(
            [{"data": [{"id": "m", "task": "text_generation", "max_model_len": most}]}]
        )
        assert launch("claude", script.url, "--print") == 0
        found, error = capsys.readouterr()
        lines = ["export CLAUDE_CODE_MAX_CONTEXT_TOKENS=65536", "export CLAUDE_CODE_MAX_OUTPUT_TOKENS=16384"]
        assert [line in found.splitlines() for line in lines] == [told, told]
        assert ("CLAUDE_CODE_MAX" in found) == told
        assert not error


@pytest.mark.parametrize(
    ("agent", "setting"),
    [
        ("claude", "export CLAUDE_STREAM_IDLE_TIMEOUT_MS=3600000\n"),
        ("claude", "export API_TIMEOUT_MS=3600000\n"),
        ("codex", "model_providers.lean_ovms.stream_idle_timeout_ms=3600000"),
    ],
)
def test_agents_that_ignore_pings_wait_for_a_long_prompt(
    agent: str, setting: str, script: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(agent, script.url, "--print") == 0
    assert setting in capsys.readouterr().out


@pytest.mark.slow
def test_the_agent_takes_the_place_of_the_command(script: ScriptedServer, path: str) -> None:
    row = {"id": "org/m", "task": "text_generation", "max_model_len": 4096}
    script.answers["/v1/models"] = deque([{"data": [row]}])
    command = [sys.executable, "-m", "lean_ovms", "launch", "opencode", script.url, "--", "run", "Hi"]
    env = {**os.environ, "PATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    arguments, environment = json.loads(done.stdout)
    assert arguments == ["run", "Hi"]
    settings = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
    assert settings["model"] == "lean_ovms/org/m"
    assert settings["provider"]["lean_ovms"]["models"] == {
        "org/m": {"name": "org/m", "limit": {"context": 4096, "output": 1024}}
    }
    assert done.stderr == (
        "lean_ovms launch: the context of org/m has 4096 tokens, but the first prompt of opencode has about 7300\n"
    )


def test_without_an_agent_all_are_listed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(path) / "aider").unlink()
    assert launch(path=path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*AGENTS]
    assert [line.endswith("installed") for line in lines] == [name != "aider" for name in AGENTS]
