"""A local Ray cluster: the documented ways to start, replicas with one store, a replica killed under load, and
conversations that stay where they are cached. Needs `.[ray]`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from lean_ovms.config import DEMO_MODEL
from lean_ovms.ray_serve import PROXY_CALLBACK

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason='needs pip install ".[ray]"')
"""Only the cluster's processes import Ray, which takes more than a second of CPU time."""

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "lean_ovms" / "features" / "ray" / "README.md"
BLOCK = 32
"""The number of tokens in a block of the scripted engine's prefix cache."""
HOST = Path(__file__).with_name("ray_host.py")


class Cluster:
    """A process that runs a cluster, and ends it when its input ends."""

    def __init__(self, folder: Path) -> None:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONWARNINGS": "ignore",
            PROXY_CALLBACK: "lean_ovms.ray_serve:proxy_middlewares",
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HOST)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=ROOT,
            )

    def line(self, start: str, timeout_s: float = 200) -> str:
        """Returns the rest of the first line with this prefix."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def tell(self, line: str) -> None:
        """Writes a line to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(300)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests, because its start takes longer than most of them."""
    made = Cluster(tmp_path_factory.mktemp("ray"))
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def url(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the address of two replicas, which serve until the first documented command."""
    cluster.tell(f"replicas {tmp_path_factory.mktemp('store') / 'store.sqlite'}")
    return cluster.line("replicas at")


@pytest.fixture(scope="module")
def commands(cluster: Cluster) -> Cluster:
    """Returns the cluster when nothing is served, so that the documented commands can run one after the other."""
    cluster.tell("stop")
    cluster.line("shut down")
    return cluster


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


class Conversation:
    """One of several conversations, whose texts have nothing in common."""

    def __init__(self, url: str, number: int) -> None:
        self._url = url
        self._messages: list[dict[str, str]] = []
        self._number = number

    def turn(self) -> tuple[int, int]:
        """Says something. Returns the number of cached prompt tokens, and the length of the previous prompt."""
        said = f"{self._number} {len(self._messages)} said " * 30
        self._messages.append({"role": "user", "content": said})
        last = getattr(self, "_tokens", 0)
        body = {"model": "m", "messages": self._messages, "max_tokens": 8}
        answer = httpx.post(f"{self._url}/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        self._messages.append(found["choices"][0]["message"])
        self._tokens = int(found["usage"]["prompt_tokens"])
        return found["usage"]["prompt_tokens_details"]["cached_tokens"], last


def share_found(turns: list[tuple[int, int]]) -> float:
    """Returns the cached share of the previous prompts. One server would find all of it, except part of a block."""
    return sum(cached for cached, _ in turns) / sum(last // BLOCK * BLOCK for _, last in turns)


def served(url: str, session: str) -> int:
    """Returns the number of chat requests that the replica of a session has answered."""
    found = httpx.get(f"{url}/metrics", headers={"X-Session-Id": session}, timeout=300).text
    line = r'lean_ovms_requests_total\{method="POST",path="[^"]*/chat/completions",status="200"\} (\S+)'
    return int(sum(float(count) for count in re.findall(line, found)))


def test_conversations_without_a_header_stay_where_they_are_cached(url: str) -> None:
    """The first test of the cluster: no replica knows a prompt yet, so each gets about half of the conversations.

    A replica's load, as it was reported last, may be that of a request that has just ended.
    """
    conversations = [Conversation(url, number) for number in range(8)]
    for one in conversations:
        one.turn()
    turns = [one.turn() for _ in range(3) for one in conversations]
    assert share_found(turns) >= 0.9
    counts = {served(url, f"session {number}") for number in range(20)}
    assert sum(counts) == (16 if len(counts) == 1 else 32)
    assert min(counts) >= 8


def test_the_request_id_comes_once(url: str) -> None:
    for given in ({}, {"X-Request-Id": "mine"}):
        for body in (chat("hello"), chat("hello", stream=True)):
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=given, timeout=300)
            assert answer.status_code == 200
            ids = answer.headers.get_list("x-request-id")
            assert len(ids) == 1
            assert ids[0] == given.get("X-Request-Id", ids[0])


def test_responses_and_conversations_are_found_by_every_replica(url: str) -> None:
    with httpx.Client(base_url=url, timeout=300) as client:

        def ok(answer: httpx.Response) -> Any:
            assert answer.status_code == 200, answer.text
            return answer.json()

        conversation = ok(client.post("/v1/conversations", json={}))["id"]
        first = ok(client.post("/v1/responses", json={"model": "m", "input": "0", "conversation": conversation}))
        made = first["id"]
        for number in range(12):  # in sessions, otherwise all would go to one replica
            spread = {"X-Session-Id": f"any {number}"}
            assert ok(client.get(f"/v1/responses/{first['id']}", headers=spread)) == first
            body = {"model": "m", "input": str(number), "previous_response_id": made}
            made = ok(client.post("/v1/responses", json=body, headers=spread))["id"]
            body = {"model": "m", "input": "x", "conversation": conversation}
            ok(client.post("/v1/responses", json=body, headers=spread))
        listed = ok(client.get(f"/v1/conversations/{conversation}/items?limit=100"))
        assert len(listed["data"]) == 26
        slow = {"model": "m", "input": "x " * 2000, "background": True, "max_output_tokens": 4000}
        running = [ok(client.post("/v1/responses", json=slow))["id"] for _ in range(4)]
        for response_id in running:  # finds the replica that runs it
            assert ok(client.post(f"/v1/responses/{response_id}/cancel"))["status"] == "cancelled"
            assert ok(client.delete(f"/v1/responses/{response_id}"))["deleted"]


def test_rays_metrics_have_those_of_both_replicas(cluster: Cluster, url: str) -> None:
    address = cluster.line("metrics at")
    deadline = time.monotonic() + 120
    found: set[str] = set()
    while len(found) < 2 and time.monotonic() < deadline:
        lines = [line for line in httpx.get(address, timeout=300).text.splitlines() if 'model_name="m"' in line]
        found = {label for line in lines for label in re.findall(r'[{,]replica="([^"]+)"', line)}
        time.sleep(0.2)
    assert len(found) >= 2
    assert any(line.startswith("ray_vllm_num_requests_waiting{") for line in lines)


async def test_a_replica_killed_under_load_leaves_each_request_one_outcome(cluster: Cluster, url: str) -> None:
    """A ledger checks that every request has an answer or an error, and that complete answers are right. The replica
    that replaces the killed one has the adapter that was loaded before."""
    ledger: Counter[str] = Counter()
    text = "What the user said comes back, letter by letter, slowly enough to be killed in the middle. " * 2
    sent = 0
    killing = asyncio.Event()

    async def one(client: httpx.AsyncClient, number: int) -> None:
        stream = number % 2 == 0
        try:
            body = chat(text, stream=stream, max_tokens=64)
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
        except httpx.HTTPError:
            ledger["the connection broke"] += 1
            return
        if answer.status_code != 200:
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2"), answer.text
            assert answer.json()["error"]["type"] == "server_error"
            ledger["status 503"] += 1
        elif stream:
            whole = answer.text.endswith("data: [DONE]\n\n")
            ledger["whole stream" if whole else "cut stream"] += 1
        else:
            assert answer.json()["usage"]["completion_tokens"] == 64
            ledger["answer"] += 1

    async def worker(client: httpx.AsyncClient) -> None:
        nonlocal sent
        while not over.is_set():
            sent += 1
            await one(client, sent)
            if sent > 40:
                killing.set()

    adapter = {"lora_name": "x", "lora_path": "/adapters/x"}
    loaded = await asyncio.to_thread(httpx.post, f"{url}/v1/load_lora_adapter", json=adapter, timeout=300)
    assert (loaded.status_code, loaded.headers["X-Replicas"]) == (200, "2")
    over = asyncio.Event()
    conversations = [Conversation(url, number) for number in range(200, 206)]
    for conversation in conversations:
        await asyncio.to_thread(conversation.turn)
    async with httpx.AsyncClient(timeout=300) as client:
        workers = [asyncio.ensure_future(worker(client)) for _ in range(8)]
        await killing.wait()
        cluster.tell("kill")
        await asyncio.to_thread(cluster.line, "killed")
        await asyncio.to_thread(cluster.line, "two replicas again")
        over.set()
        await asyncio.gather(*workers)
        for number in range(20):  # in sessions of both replicas, one of which has started after the adapter was loaded
            body, spread = {**chat("hello"), "model": "x"}, {"X-Session-Id": f"any {number}"}
            answer = await client.post(f"{url}/v1/chat/completions", json=body, headers=spread)
            assert answer.status_code == 200, answer.text
    assert sum(ledger.values()) == sent, ledger
    assert ledger["answer"] + ledger["whole stream"] > 40
    for conversation in conversations:  # half of them were on the replica that died, and continue on another
        await asyncio.to_thread(conversation.turn)
    turns = [await asyncio.to_thread(conversation.turn) for conversation in conversations]
    assert share_found(turns) >= 0.9
    failed = sent - ledger["answer"] - ledger["whole stream"]
    # Requests that ran on the dead replica, and those sent to it before its death was known.
    assert failed <= 8 * 2, ledger


def documented(start: str) -> list[str]:
    """Returns the words of the first command with this prefix in the feature's page."""
    return next(line for line in PAGE.read_text().splitlines() if line.startswith(start)).split()


def test_the_documented_command_serves(commands: Cluster) -> None:
    """The demo model replaces the command's."""
    *words, option = documented("serve run")
    assert (words, option) == (["serve", "run", "lean_ovms.ray_serve:app"], "model_path=/models/qwen3")
    commands.tell(f"run {words[2]} model_path={DEMO_MODEL} model_name=demo")
    answered(commands, {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8})
    commands.tell("stop")
    commands.line("stopped")


async def test_the_documented_file_scales_with_the_load(commands: Cluster, tmp_path: Path) -> None:
    """The test uses a scripted engine, one core per replica, and shorter delays."""
    file = yaml.safe_load((ROOT / documented("serve deploy")[-1]).read_text())
    [application] = file["applications"]
    application["args"] = {"fake_engine": True, "model_name": "m", "plugin_config": {"step_s": 0.05}}
    [deployment] = application["deployments"]
    deployment["ray_actor_options"] = {"num_cpus": 1}
    quick = {"upscale_delay_s": 0, "downscale_delay_s": 0, "metrics_interval_s": 0.2, "look_back_period_s": 1}
    deployment["autoscaling_config"] |= {**quick, "target_ongoing_requests": 2, "max_replicas": 2}
    (tmp_path / "ray.yaml").write_text(yaml.safe_dump(file))
    commands.tell(f"run {tmp_path / 'ray.yaml'}")
    url = await asyncio.to_thread(answered, commands, chat("hello", max_tokens=1))
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:

        async def busy(number: int) -> None:
            while True:
                body = chat(f"{number} " * 200, max_tokens=150)
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

        load = asyncio.gather(*(busy(number) for number in range(4)))
        commands.tell("wait 2")
        grown = asyncio.ensure_future(asyncio.to_thread(commands.line, "2 replicas"))
        await asyncio.wait([load, grown], return_when=asyncio.FIRST_COMPLETED)
        load.cancel()
        await asyncio.wait([load])
        await grown
    commands.tell("wait 1")
    await asyncio.to_thread(commands.line, "1 replicas")
    commands.tell("stop")
    await asyncio.to_thread(commands.line, "stopped")


def answered(made: Cluster, body: dict[str, Any]) -> str:
    """Returns the address when a chat is answered there."""
    url = made.line("serving at")
    deadline = time.monotonic() + 120
    while (status := asked(f"{url}/v1/chat/completions", body)) != 200 and time.monotonic() < deadline:
        assert made.process.poll() is None, made.log.read_text()
        time.sleep(0.2)
    assert status == 200, made.log.read_text()
    return url


def asked(url: str, body: dict[str, Any]) -> int:
    try:
        return httpx.post(url, json=body, timeout=300).status_code
    except httpx.HTTPError:
        return 0
