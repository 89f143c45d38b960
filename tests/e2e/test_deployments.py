"""Several models from a config.json, with real engines: served, changed and removed under load without losing
requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import ANY_MODEL, EXACT, Process, start_process, until
from tests.features.ovms_files.graphs import graph

pytestmark = pytest.mark.model

COUNT = "Count from 1 to 30."


def write(directory: Path, **models: dict[str, Any]) -> None:
    """Replaces config.json atomically, like an editor or a deployment."""
    entries = [{"config": {"name": name, "base_path": name, **extra}} for name, extra in models.items()]
    (directory / "new").write_text(json.dumps({"model_config_list": entries}))
    os.replace(directory / "new", directory / "config.json")


def write_graph(directory: Path, name: str, options: str = "") -> None:
    """Writes a graph with EXACT, so that tokens do not depend on the rest of the batch."""
    (directory / name).mkdir(exist_ok=True)
    text = f'models_path: "{ANY_MODEL["model_path"]}", plugin_config: {EXACT!r}, {options}'
    (directory / name / "graph.pbtxt").write_text(graph(text))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        write_graph(tmp_path, name)
    write(tmp_path, first={}, second={})
    return tmp_path


@pytest.fixture
def two(repository: Path) -> Iterator[Process]:
    """A server of two models that reads its files only when told to."""
    with start_process("--config_path", str(repository), "--file_system_poll_wait_seconds", "0") as process:
        process.wait_for("ready: first, second")
        yield process


def client(process: Process) -> openai.AsyncOpenAI:
    """Returns a client that the caller must close."""
    return openai.AsyncOpenAI(base_url=process.url + "/v3", api_key="none", max_retries=0, timeout=300)


@pytest.fixture
async def who(two: Process) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(two) as found:
        yield found


def reload_(process: Process) -> tuple[int, dict[str, Any]]:
    answer = httpx.post(process.url + "/v1/config/reload", timeout=300)
    return answer.status_code, answer.json()


def states(body: dict[str, Any]) -> dict[str, str]:
    return {name: found["model_version_status"][0]["state"] for name, found in body.items()}


async def ask(who: openai.AsyncOpenAI, model: str, tokens: int = 40) -> str:
    """Returns a complete streamed answer. Raises an error if anything is missing."""
    text, finish = [], None
    async for chunk in await who.completions.create(
        model=model, prompt=COUNT, max_tokens=tokens, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    ):  # fmt: skip
        if chunk.choices:
            text.append(chunk.choices[0].text)
            finish = chunk.choices[0].finish_reason or finish
    assert finish == "length"
    return "".join(text)


async def test_two_models_survive_reloads_under_load_with_nothing_lost(
    two: Process, who: openai.AsyncOpenAI, repository: Path
) -> None:
    """A model is changed and one added, a change fails, and a model is removed."""
    expected = await ask(who, "first")
    assert await ask(who, "second") == expected
    assert [model.id for model in (await who.models.list()).data] == ["first", "second"]
    stop, answered = asyncio.Event(), {"first": 0, "second": 0}

    async def load(model: str) -> None:
        while not stop.is_set():
            assert await ask(who, model) == expected
            answered[model] += 1

    clients = [asyncio.create_task(load(model)) for model in ("first", "second") for _ in range(3)]
    long = asyncio.create_task(ask(who, "second", 200))
    await until(lambda: min(answered.values()) > 1)
    write_graph(repository, "second", "max_num_seqs: 2")
    write_graph(repository, "third")
    write(repository, first={}, second={}, third={})
    code, body = await asyncio.to_thread(reload_, two)
    assert (code, states(body)) == (200, dict.fromkeys(("first", "second", "third"), "AVAILABLE"))
    seen = dict(answered)

    def all_go_on() -> bool:
        for broken in filter(asyncio.Task.done, clients):
            broken.result()
        return all(answered[name] > seen[name] + 3 for name in seen)

    await until(all_go_on)
    assert len(await long) > len(expected)
    assert await ask(who, "third") == expected
    stop.set()
    await asyncio.gather(*clients)

    write_graph(repository, "first", "no_such_option: 1")
    code, body = await asyncio.to_thread(reload_, two)
    assert code == 500
    assert body["error"]["message"].startswith("Reloading config file failed.")
    assert str(repository) not in json.dumps(body)
    assert await ask(who, "first")
    status = httpx.get(two.url + "/v1/config", timeout=300).json()
    assert status["first"]["model_version_status"][0]["status"]["error_code"] == "FAILED_PRECONDITION"
    assert set(states(status).values()) == {"AVAILABLE"}
    two.wait_for("no option 'no_such_option'")

    assert len(engines(two.popen.pid)) == 3
    write_graph(repository, "first")
    write(repository, first={})
    code, body = await asyncio.to_thread(reload_, two)
    assert (code, states(body)["first"]) == (200, "AVAILABLE")
    with pytest.raises(openai.NotFoundError):
        await ask(who, "second")
    await until(lambda: len(engines(two.popen.pid)) == 1)
    # Reported when the front end has noticed that the processes have ended.
    ended = {"first": "AVAILABLE", "second": "END", "third": "END"}
    await until(lambda: states(httpx.get(two.url + "/v1/config", timeout=300).json()) == ended)
    assert two.stop(signal.SIGTERM) == 0


GRAPHS = {
    # As written by `ovms --pull --task text_generation`.
    "exported": """max_num_seqs:256,
            device: "CPU",
            models_path: "MODEL",
            plugin_config: '{"KV_CACHE_PRECISION":"u8"}',
            enable_prefix_caching: true,
            cache_size: 1,
            max_num_batched_tokens: 512,
            dynamic_split_fuse: false,
            tool_parser: "hermes3", reasoning_parser: "none", max_tokens_limit: 100""",
    "speculative": """models_path: "MODEL" draft_models_path: "DRAFT" draft_device: "CPU" cache_size: 1""",
    "evicting": """models_path: "MODEL" cache_size: 1 enable_prefix_caching: false
          cache_eviction_config { start_size: 32 recent_size: 128 max_cache_size: 672
          kv_crush_config { budget: 0 } }""",
    "legacy": 'models_path: "MODEL" pipeline_type: LM chat_template_mode: MINJA',
}
"""Graphs from OVMS's exporter, demos and option tables."""


async def test_graphs_of_every_kind_load_and_answer(tmp_path: Path) -> None:
    draft = Path(__file__).parents[1] / "data" / "demo_draft"
    for name, options in GRAPHS.items():
        (tmp_path / name).mkdir(parents=True)
        options = options.replace("MODEL", str(DEMO_MODEL)).replace("DRAFT", str(draft))
        (tmp_path / name / "graph.pbtxt").write_text(graph(options, "# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO\n"))
    write(tmp_path, **{name: {} for name in GRAPHS})
    with start_process("--config_path", str(tmp_path), "--file_system_poll_wait_seconds", "0") as process:
        process.wait_for("ready: " + ", ".join(GRAPHS), 100)
        async with client(process) as who:
            answers = await asyncio.gather(*(ask(who, name, 8) for name in GRAPHS))
            assert len(set(answers)) <= 3  # with 8-bit caches, answers may differ
            with pytest.raises(openai.BadRequestError, match="limit"):
                await who.completions.create(model="exported", prompt="x", max_tokens=101)
            await who.completions.create(model="legacy", prompt="x", max_tokens=101)


def engines(pid: int) -> list[str]:
    """Returns the engine processes of a server."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text()
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[1] == str(pid) and "lean_ovms.engine" in command:
            found.append(process.name)
    return found
