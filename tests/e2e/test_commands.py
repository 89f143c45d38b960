"""The commands of the command line with a real server and the demo model."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import PATIENT_S, Process

QUESTION = "What is the capital of France?"


def command(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "lean_ovms", *argv]
    return subprocess.run(words, input=stdin, capture_output=True, text=True, check=False, timeout=PATIENT_S)


def test_chat_and_ps_and_stop_and_bench(server: Process) -> None:
    answer = command("chat", server.url, "--temp", "0", QUESTION)
    assert answer.stdout == "The capital of France is Paris.\n", answer.stderr
    assert command("chat", server.url + "/v1", stdin=QUESTION).stdout
    assert "demo  " in command("ps", server.url).stdout
    assert command("stop", "demo-embed", server.url).returncode == 0
    load = command("bench", server.url, "--num-prompts", "4", "--random-output-len", "8")
    assert load.returncode == 0, load.stderr
    assert "Total generated tokens:                  32\n" in load.stdout


def test_run_starts_a_server_that_ends_with_it(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lean_ovms", "run", str(DEMO_MODEL), "--temp", "0", QUESTION]
    env = os.environ | {"TMPDIR": str(tmp_path), "API_KEY": "k"}
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False, timeout=PATIENT_S
    )
    assert (done.stdout, done.stderr, done.returncode) == ("The capital of France is Paris.\n", "", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_run_and_its_server(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lean_ovms", "run", str(DEMO_MODEL)]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    # Without a terminal at stdin, it would wait for a prompt before it starts the server.
    terminal, stdin = pty.openpty()
    with subprocess.Popen(words, stdin=stdin, stderr=subprocess.PIPE, env=env) as process:
        while not list(tmp_path.glob("*/s")):  # until the server listens
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENT_S) == 128 + signal.SIGTERM
    os.close(stdin)
    os.close(terminal)
    assert list(tmp_path.iterdir()) == []


def test_run_says_why_the_server_does_not_start() -> None:
    done = command("run", str(DEMO_MODEL), "Hello!", "--max_model_len", "9999999")
    assert done.returncode == 1
    assert done.stderr.startswith("lean_ovms run: cannot start: --max_model_len 9999999")
    assert done.stderr.count("\n") == 1
