"""The files of docs/deploy: systemd accepts the unit, and the server works under the container's restrictions."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Process

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docs" / "deploy" / "lean_ovms.service"
CONTAINER = ROOT / "Dockerfile"
COMPOSE = ROOT / "docs" / "deploy" / "compose.yaml"
READ_ONLY = "mount -o remount,ro,bind / && mount -t tmpfs tmpfs /mnt && exec"
"""A read-only root file system and a folder for temporary files, in a mount namespace of the server's own. The folder
is not /tmp, which may contain this project and its Python."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/lean_ovms/bin/lean-ovms", sys.executable)
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_the_unit_names_options_and_statuses_that_exist() -> None:
    from lean_ovms.cli.arguments import parse
    from lean_ovms.errors import ExitStatus

    text = UNIT.read_text()
    environ = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.M))
    config = parse([], environ)
    assert config.model_repository_path == "/var/lib/lean_ovms"
    stop_s = float(re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)[1])  # type: ignore[index]
    assert stop_s > config.drain_timeout_s
    assert f"RestartPreventExitStatus={ExitStatus.USAGE} {ExitStatus.NEVER_SERVED}\n" in text


def test_the_unit_serves_no_demo_when_its_settings_are_missing(tmp_path: Path) -> None:
    """Without its settings file, systemd does not start it; with an empty one, it finds no model."""
    text = UNIT.read_text()
    assert re.search(r"^EnvironmentFile=/etc/lean_ovms\.env$", text, re.M)
    environ = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.M))
    environ = {name: value.replace("/var/lib/lean_ovms", str(tmp_path)) for name, value in environ.items()}
    [start] = re.findall(r"^ExecStart=(.*)$", text, re.M)
    command = [sys.executable, "-m", "lean_ovms", *start.split()[1:], "--rest_port", "0"]
    done = subprocess.run(
        command, env={**os.environ, **environ}, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert f"--model_repository_path {tmp_path} contains no model: it is empty" in done.stderr


def test_the_container_copies_what_exists_and_runs_as_nobody_special() -> None:
    text = CONTAINER.read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        assert all((ROOT / name).exists() for name in line.split())
    assert re.search(r"^USER \d{4,}:\d{4,}$", text, re.M)
    assert text.index("USER") < text.index("ENTRYPOINT")


@pytest.fixture
def read_only() -> Iterator[Process]:
    """A server with the demo model that can write only to its TMPDIR, and has no home directory."""
    if subprocess.run(["unshare", "-rm", "sh", "-c", READ_ONLY + " true"], capture_output=True).returncode:
        pytest.skip("mount namespaces are not allowed here")
    command = [sys.executable, "-m", "lean_ovms", "--rest_port", "0", "--rest_bind_address", "127.0.0.1"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": "/mnt"}
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", f"{READ_ONLY} {shlex.join(command)}"],
        stderr=subprocess.PIPE, text=True, env=environ, cwd="/",
    ) as popen:  # fmt: skip
        try:
            process = Process(popen, "")
            listens = process.wait_for("listens on")
            process.url = re.search(r"listens on (http\S+)", listens)[1]  # type: ignore[index]
            yield process
        finally:
            popen.kill()


@pytest.mark.model
def test_a_read_only_root_file_system_will_do(read_only: Process) -> None:
    read_only.wait_for("ready: demo")
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8,
            "response_format": {"type": "json_object"}}  # fmt: skip
    request = urllib.request.Request(
        read_only.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] > 0
    check = [sys.executable, "-m", "lean_ovms", "healthcheck", "--rest_port", read_only.url.rpartition(":")[2]]
    assert subprocess.run(check).returncode == 0
    assert read_only.stop(signal.SIGTERM) == 0
    assert subprocess.run(check, stderr=subprocess.DEVNULL).returncode == 1


def test_the_health_checks_of_container_and_compose_file_are_the_same() -> None:
    check = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", CONTAINER.read_text(), re.M)[1])  # type: ignore[index]
    composed = json.loads(re.search(r"^      test: (\[.*\])$", COMPOSE.read_text(), re.M)[1])  # type: ignore[index]
    assert composed == ["CMD", *check]
    assert check[1:] == ["healthcheck", "--pid", "1"]
    assert "stop_grace_period: 45s" in COMPOSE.read_text()  # longer than --drain_timeout_s
