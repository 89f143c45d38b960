"""Options that change how the model is served, each with the real engine."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import ANY_FLAGS, ANY_MODEL, PATIENT_S, local_server, start_process

pytestmark = pytest.mark.model

DRAFT = Path(__file__).parents[1] / "data" / "demo_draft"
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


async def test_the_prompt_can_be_scored_without_prefix_caching() -> None:
    async with local_server(enable_prefix_caching=False) as local, local.client() as client:
        ask = {"model": "demo", "prompt": "one two three", "logprobs": 0, "echo": True, "temperature": 0}
        scored = (await client.completions.create(**ask, max_tokens=0)).choices[0]
        assert scored.text == "one two three"
        assert scored.logprobs
        values = scored.logprobs.token_logprobs or []
        assert values[0] is None
        assert all(v <= 0 for v in values[1:])
        assert "".join(scored.logprobs.tokens or []) == "one two three"
        longer = (await client.completions.create(**ask, max_tokens=3)).choices[0]
        assert longer.logprobs
        assert (longer.logprobs.token_logprobs or [])[: len(values)] == values
    async with local_server(pipeline_type="LM_CB") as local, local.client() as client:
        with pytest.raises(openai.BadRequestError, match="enable_prefix_caching"):
            await client.completions.create(**ask, max_tokens=0)
    async with local_server(pipeline_type="PAGED") as local, local.client() as client:
        again = (await client.completions.create(**ask, max_tokens=0)).choices[0].logprobs
        assert again
        assert again.tokens == scored.logprobs.tokens


async def test_another_tokenizer_family() -> None:
    if not LLAMA.is_dir():
        pytest.fail("the llama_sp fixture is missing")
    async with local_server(model_path=str(LLAMA), model_name="org/llama") as local, local.client() as client:
        assert (await client.models.retrieve("org/llama")).id == "org/llama"
        ask = {"model": "org/llama", "prompt": "Grüße 世界", "max_tokens": 24, "temperature": 0}
        whole = await client.completions.create(**ask, extra_body={"return_token_ids": True})
        chunks = [c.choices[0].text async for c in await client.completions.create(**ask, stream=True)]
        assert "".join(chunks) == whole.choices[0].text
        assert whole.choices[0].text == await local.model.decode(whole.choices[0].token_ids, True)  # type: ignore[attr-defined]
        assert local.model.engine.vocabulary.exact


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


async def test_a_silent_stream_pings_during_a_long_prefill() -> None:
    async with local_server(sse_ping_s=0.005, max_num_batched_tokens=64) as local:
        reader, writer = await asyncio.open_connection(*local.url.removeprefix("http://").split(":"))
        body = json.dumps({"model": "demo", "prompt": "word " * 3000, "max_tokens": 2, "stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
        )
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert data.index(b": ping") < data.index(b"data: ")
        assert b"data: [DONE]" in data


async def test_prompt_tokens_from_the_prefix_cache_are_reported() -> None:
    prompt = "one two three four " * 20
    async with local_server(metrics_enable=True, **ANY_MODEL) as local, local.client() as client:

        async def cached(**fields: Any) -> int:
            ask = {"model": "demo", "prompt": prompt, "max_tokens": 2, **fields}
            usage = (await client.completions.create(**ask)).usage
            assert usage
            assert usage.prompt_tokens_details
            return usage.prompt_tokens_details.cached_tokens or 0

        assert await cached() == 0
        again = await cached()
        assert again >= 32
        assert again % 32 == 0
        assert await cached(n=2, temperature=1) == again
        exposed = local.app.services.metrics.expose().decode()
        assert f'vllm:prefix_cache_hits_total{{model_name="demo"}} {2 * again}' in exposed
        assert 'vllm:prefix_cache_queries_total{model_name="demo"}' in exposed
        answer = await client.responses.create(model="demo", input="Hello!")
        assert answer.usage
        assert answer.usage.input_tokens_details.cached_tokens == 0
    options = {"enable_prefix_caching": False, "pipeline_type": "LM_CB", **ANY_MODEL}
    async with local_server(**options) as local, local.client() as client:
        usage = (await client.completions.create(model="demo", prompt=prompt, max_tokens=2)).usage
        assert usage
        assert usage.prompt_tokens_details is None


def test_a_request_that_comes_before_the_model_is_loaded_waits_for_it() -> None:
    with start_process("--load_models", "start", *ANY_FLAGS) as process:
        with openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0, timeout=PATIENT_S) as client:
            assert client.completions.create(model="demo", prompt="Hi", max_tokens=2).usage.completion_tokens == 2
        assert "ready: demo" in process.wait_for("ready: demo")


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
