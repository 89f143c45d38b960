"""Options that change how the model is served, each with the real engine."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.conftest import ANY_MODEL, local_server, start_process

pytestmark = pytest.mark.model

LLAMA = Path(ANY_MODEL["model_path"])
HELLO = [{"role": "user", "content": "Hello!"}]


async def test_a_shorter_context_is_enforced_and_truncation_helps() -> None:
    async with local_server(max_model_len=64, **ANY_MODEL) as local, local.client() as client:
        long = {"model": "demo", "prompt": "one two three " * 100, "temperature": 0}
        with pytest.raises(openai.BadRequestError, match="64"):
            await client.completions.create(**long, max_tokens=4)
        for keep in (10, -1):
            answer = await client.completions.create(
                **long, max_tokens=4, extra_body={"truncate_prompt_tokens": keep, "ignore_eos": True}
            )
            assert answer.usage
            assert answer.usage.completion_tokens == 4
            assert answer.usage.prompt_tokens == 10 if keep == 10 else answer.usage.prompt_tokens > 40
        rest = await client.completions.create(
            model="demo", prompt="one two three", max_tokens=1000, extra_body={"ignore_eos": True}
        )
        assert rest.choices[0].finish_reason == "length"
        assert rest.usage
        assert rest.usage.total_tokens <= 64


async def test_a_model_without_a_template_completes_but_does_not_chat(tmp_path: Path) -> None:
    for file in LLAMA.iterdir():
        if "template" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
    bare = tmp_path / "openvino_tokenizer.xml"
    graph = re.sub(r'<chat_template value="[^"]*"\s*/>', "", bare.read_text("utf-8"))
    bare.unlink()
    bare.write_text(graph, "utf-8")
    async with local_server(model_path=str(tmp_path), model_name="m") as local, local.client() as client:
        assert (await client.completions.create(model="m", prompt="x", max_tokens=2)).usage
        with pytest.raises(openai.BadRequestError, match=r"(?i)chat template"):
            await client.chat.completions.create(model="m", messages=HELLO)


def test_while_a_load_balancer_looks_away_readiness_is_503_and_requests_are_served() -> None:
    with start_process("--fake_engine", "--model_name", "m", "--drain_delay_s", "60") as process:
        process.wait_for("ready: m")
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("reporting not ready")
        assert httpx.get(f"{process.url}/health", timeout=300).status_code == 503
        body = {"model": "m", "prompt": "x", "max_tokens": 2}
        assert httpx.post(f"{process.url}/v1/completions", json=body, timeout=300).status_code == 200
        time.sleep(0.6)  # an earlier Ctrl-C would count as the same one
        assert process.stop(signal.SIGINT) == 0
