"""A local Ray cluster: the documented command, replicas on one store, a replica killed under load. Needs `.[ray]`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lean_ovms.ray_serve import PROXY_CALLBACK

pytest.importorskip("ray.serve", reason='needs pip install ".[ray]"')

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
HOST = Path(__file__).with_name("ray_host.py")


class Cluster:
    """A process that runs a cluster and two replicas on it; it ends them when its input ends."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{EXAMPLES}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONWARNINGS": "ignore",
            PROXY_CALLBACK: "lean_ovms.ray_serve:proxy_middlewares",
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HOST), *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=ROOT,
            )

    def line(self, start: str, timeout_s: float = 200) -> str:
        """The rest of the first line that begins so."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

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
    folder = tmp_path_factory.mktemp("ray")
    made = Cluster(folder, "replicas", str(folder / "store.sqlite"))
    try:
        made.url = made.line("serving at")  # type: ignore[attr-defined]
        yield made
    finally:
        made.end()


@pytest.fixture
def url(cluster: Cluster) -> str:
    return str(cluster.url)  # type: ignore[attr-defined]


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


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
        for number in range(12):  # by chance 1 in 4096 goes to one replica alone
            assert ok(client.get(f"/v1/responses/{first['id']}")) == first
            body = {"model": "m", "input": str(number), "previous_response_id": made}
            made = ok(client.post("/v1/responses", json=body))["id"]
            ok(client.post("/v1/responses", json={"model": "m", "input": "x", "conversation": conversation}))
        listed = ok(client.get(f"/v1/conversations/{conversation}/items?limit=100"))
        assert len(listed["data"]) == 26
        slow = {"model": "m", "input": "x " * 2000, "background": True, "max_output_tokens": 4000}
        running = [ok(client.post("/v1/responses", json=slow))["id"] for _ in range(4)]
        for response_id in running:
            while (answer := client.post(f"/v1/responses/{response_id}/cancel")).status_code == 409:
                assert answer.json()["error"]["code"] == "other_server"  # another replica may be asked next
            assert ok(answer)["status"] == "cancelled"
            assert ok(client.delete(f"/v1/responses/{response_id}"))["deleted"]


def test_a_session_stays_on_its_replica(url: str) -> None:
    """Each replica counts its own requests: those of one session are all there, whichever it is."""

    def chats(session: str) -> int:
        found = httpx.get(f"{url}/metrics", headers={"X-Session-Id": session}, timeout=300).text
        line = r'lean_ovms_requests_total\{method="POST",path="[^"]*/chat/completions",status="200"\} (\S+)'
        return int(sum(float(count) for count in re.findall(line, found)))

    for session in ("one", "two", "three"):
        before = chats(session)
        for number in range(8):
            headers = {"X-Session-Id": session}
            answer = httpx.post(f"{url}/v1/chat/completions", json=chat(str(number)), headers=headers, timeout=300)
            assert answer.status_code == 200
        assert chats(session) == before + 8


async def test_a_replica_killed_under_load_leaves_each_request_one_outcome(cluster: Cluster, url: str) -> None:
    """The ledger: every request that was sent has an answer or an error, and whole answers are right."""
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

    over = asyncio.Event()
    async with httpx.AsyncClient(timeout=300) as client:
        workers = [asyncio.ensure_future(worker(client)) for _ in range(8)]
        await killing.wait()
        assert cluster.process.stdin is not None
        cluster.process.stdin.write(b"kill\n")
        cluster.process.stdin.flush()
        await asyncio.to_thread(cluster.line, "killed")
        await asyncio.to_thread(cluster.line, "two replicas again")
        over.set()
        await asyncio.gather(*workers)
        answer = await client.post(f"{url}/v1/chat/completions", json=chat("hello"))
    assert answer.status_code == 200
    assert sum(ledger.values()) == sent, ledger
    assert ledger["answer"] + ledger["whole stream"] > 40
    failed = sent - ledger["answer"] - ledger["whole stream"]
    assert failed <= 8 * 2, ledger  # what ran on the replica that died, and what was sent to it before that was known


def test_the_documented_command_serves(tmp_path: Path) -> None:
    """The first line of docs/examples/ray_app.py, on two cores."""
    example = (EXAMPLES / "ray_app.py").read_text()
    command = example.split('"""')[1].partition(": ")[2].split()
    assert command[:2] == ["serve", "run"]
    made = Cluster(tmp_path, "command", *command[2:])
    try:
        url = made.line("serving at")
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
        deadline = time.monotonic() + 120
        while (status := asked(f"{url}/v1/chat/completions", body)) != 200 and time.monotonic() < deadline:
            assert made.process.poll() is None, made.log.read_text()
            time.sleep(0.2)
        assert status == 200, made.log.read_text()
    finally:
        made.end()


def asked(url: str, body: dict[str, Any]) -> int:
    try:
        return httpx.post(url, json=body, timeout=300).status_code
    except httpx.HTTPError:
        return 0
