"""From a hub to an answer: one command pulls the model, writes its graph and serves it; the next start needs no hub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import Process, start_process
from tests.features.hub.hub_server import HubServer, Repo

pytestmark = pytest.mark.model

HELLO = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A hub that has the demo model."""
    server = HubServer()
    files = {str(p.relative_to(DEMO_MODEL)): p.read_bytes() for p in DEMO_MODEL.rglob("*") if p.is_file()}
    server.repos["org/demo"] = Repo({name: data for name, data in files.items() if "__" not in name})
    yield server
    server.stop()


def answer(process: Process, model: str) -> str:
    with openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        said = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=24)  # type: ignore[arg-type]
        return said.choices[0].message.content or ""


def test_a_model_is_pulled_and_served_and_served_again_without_the_hub(hub: HubServer, tmp_path: Path) -> None:
    flags = ("--source_model", "org/demo", "--model_repository_path", str(tmp_path), "--task", "text_generation")
    environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", "HF_HUB_DISABLE_TELEMETRY": "1"}
    for _ in range(2):
        with start_process(*flags, env=environ) as process:
            process.wait_for("ready: org/demo")
            assert "Paris" in answer(process, "org/demo")
        hub.repos.clear()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["org"]


def test_a_model_is_pulled_added_to_a_config_and_served_from_it(hub: HubServer, tmp_path: Path) -> None:
    environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "", "OVMS_MODEL_REPOSITORY_PATH": str(tmp_path)}
    for command in (("--pull", "--source_model", "org/demo"), ("--add_to_config", "--model_name", "org/demo")):
        done = subprocess.run(
            [sys.executable, "-m", "lean_ovms", *command], env={**environ}, cwd=Path(__file__).parents[2]
        )
        assert done.returncode == 0
    with start_process(env=environ) as process:
        process.wait_for("ready: org/demo")
        assert "Paris" in answer(process, "org/demo")
