"""The examples for programs and hosts run as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"

pytestmark = pytest.mark.model


def run(name: str) -> list[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, env=environ, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_server_in_a_programs_own_loop() -> None:
    first, *answer = run("embedded_server.py")
    assert re.fullmatch(r"listening on http://127\.0\.0\.1:\d+", first)
    assert "Paris" in " ".join(answer)


def test_a_model_without_sockets() -> None:
    lines = run("in_process.py")
    assert lines[0]
    assert lines[-3:] == ["models: demo demo-embed", "answers side by side: 3", "refused: 400 temperature"]


@pytest.mark.parametrize(
    ("app", "base"), [("starlette_mount:site", "/llm"), ("lean_ovms.asgi:app", "")], ids=["mount", "hosted"]
)
def test_under_uvicorn(app: str, base: str, tmp_path: Path) -> None:
    """The host's own log says where it listens. It stops with SIGTERM, and leaves nothing behind."""
    command = [sys.executable, "-m", "uvicorn", "--port", "0", "--app-dir", str(EXAMPLES), app]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LEAN_OVMS_FAKE_ENGINE": "true"}
    with (tmp_path / "log").open("w") as log:
        host = subprocess.Popen(command, stderr=log, stdout=log, env=environ, cwd=ROOT)
    try:
        url = listening(tmp_path / "log", host) + base
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "stream": True}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        host.terminate()
        host.wait(300)
    finally:
        host.kill()
        host.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()


def listening(log: Path, host: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and host.poll() is None:
        if found := re.search(r"running on (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())
