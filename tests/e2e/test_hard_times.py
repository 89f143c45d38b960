"""Clients disconnect, the engine dies, nobody sends requests, and the server is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import ANY_FLAGS, ANY_MODEL, EXACT, PATIENT_S, local_server, start_process, until
from tests.makers.make_lora import make as make_lora

pytestmark = pytest.mark.model


async def stream(client: openai.AsyncOpenAI, cut_after: int | None = None, **fields: Any) -> tuple[str, str | None]:
    """Returns text and finish reason of a streamed completion. With `cut_after`, it disconnects after that many
    chunks."""
    chunks = await client.completions.create(model="demo", stream=True, temperature=0, **fields)
    text, reason, seen = "", None, 0
    async with chunks:
        async for chunk in chunks:
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason or reason
            seen += 1
            if cut_after is not None and seen >= cut_after:
                break
    return text, reason


async def test_thirty_two_streams_a_third_of_them_cut_off() -> None:
    rng = random.Random(7)
    asks = [
        {"prompt": f"Item {i}: {'word ' * rng.randrange(1, 60)}", "max_tokens": rng.randrange(4, 80)} for i in range(32)
    ]
    cuts = [rng.randrange(1, 6) if i % 3 == 0 else None for i in range(32)]
    async with local_server(plugin_config=EXACT, **ANY_MODEL) as local, local.client() as client:
        ignore = {"extra_body": {"ignore_eos": True}}
        quiet = [await stream(client, **ask, **ignore) for ask in asks]
        found = await asyncio.gather(
            *(stream(client, cut, **ask, **ignore) for ask, cut in zip(asks, cuts, strict=True))
        )
        for (text, reason), cut, whole in zip(found, cuts, quiet, strict=True):
            if cut is None:
                assert (text, reason) == whole
            else:
                assert whole[0].startswith(text)
        await until(lambda: local.server.active_requests == 0)

        async def idle() -> bool:
            stats = await local.model.stats()
            return stats.running == stats.queued == stats.kv_blocks_used == 0

        await until(idle)


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def idle_for(duration_s: float, pids: list[int]) -> bool:
    """Returns whether none of the processes uses CPU time for some seconds."""
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(duration_s)
    return before == [cpu_seconds(pid) for pid in pids]


def test_an_idle_server_uses_no_cpu_and_one_that_is_stopped_lets_streams_finish() -> None:
    """The variable would take the docstrings away that openvino needs. Every process gets the signal, as when a
    terminal is closed."""
    with start_process(*ANY_FLAGS, env={"PYTHONOPTIMIZE": "2"}) as process:
        process.wait_for("ready: ")
        with openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as client:
            client.completions.create(model="demo", prompt="x", max_tokens=4)
            pids = [process.popen.pid, *children(process.popen.pid)]
            assert len(pids) == 2
            assert any(idle_for(2.0, pids) for _ in range(5)), "what polls uses a tick of the CPU clock in each of them"
            chunks = client.completions.create(
                model="demo", prompt="x", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
            )
            first = next(chunks)
            for pid in pids:
                os.kill(pid, signal.SIGHUP)
            last = [first, *chunks][-1]
        assert last.choices[0].finish_reason == "length"
        assert process.popen.wait(PATIENT_S) == 0
        assert not os.path.exists(f"/proc/{pids[1]}")


LONG = '{"step_s": 0.02, "answer": "' + 2000 * "x" + '"}'


def test_a_second_ctrl_c_waits_no_longer_one_that_came_twice_is_one() -> None:
    with start_process("--fake_engine", "true", "--plugin_config", LONG) as process:
        process.wait_for("ready: ")
        with httpx.Client(base_url=process.url, timeout=PATIENT_S) as client:
            asked = {"model": "demo", "prompt": "x", "max_tokens": 2000, "stream": True}
            with client.stream("POST", "/v1/completions", json=asked) as answer:
                lines = answer.iter_lines()
                next(lines)
                for _ in range(2):
                    process.popen.send_signal(signal.SIGINT)
                process.wait_for("stopping: ")
                time.sleep(0.6)
                assert process.popen.poll() is None
                process.popen.send_signal(signal.SIGINT)
                last = [line for line in lines if line][-2:]
                assert "shutting_down" in last[0], "the client can tell"
        assert process.popen.wait(PATIENT_S) == 0


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


def descendants(pid: int) -> list[int]:
    """Returns the children of all threads of a process, and their descendants."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            found += map(int, file.read().split())
    return found + [other for child in found for other in descendants(child)]


def total_cpu_seconds(pids: list[int]) -> float:
    """Returns the CPU seconds of those processes that still exist."""
    found = 0.0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += cpu_seconds(pid)
    return found


def exists(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_front_end_that_is_killed_takes_computing_engines_and_their_helpers_along(tmp_path: Path) -> None:
    with start_process(
        "--lora_modules", f"adapter={make_lora(tmp_path / 'adapter', 1)}", "--pipeline_type", "LM_CB"
    ) as process:
        process.wait_for("ready: ")
        with openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as client:
            client.completions.create(model="demo", prompt="x", max_tokens=2, extra_body={"guided_regex": "a+"})
            client.completions.create(model="adapter", prompt="x", max_tokens=2)
            long = {"max_tokens": 4000, "stream": True, "extra_body": {"ignore_eos": True}}
            streams: list[Any] = [
                client.completions.create(model=model, prompt=["word " * 300] * 8, **long)  # type: ignore[call-overload]
                for model in ("demo", "adapter")
            ]
            for stream in streams:
                next(iter(stream))
            below = descendants(process.popen.pid)
            assert len(below) == 3, "an engine for the model and one for the adapter; what compiles grammars"
            process.popen.kill()
            process.popen.wait()
            used_s = total_cpu_seconds(below)
            while any(map(exists, below)):
                assert total_cpu_seconds(below) < used_s + 2, "it goes on computing"
                time.sleep(0.01)
