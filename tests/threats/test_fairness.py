"""A client with more work than the engine can do does not delay others (README.md)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.threats.target import CHAT, HI, CompletedChoice, Target, read_answer, request, start_target, until

LLAMA = Path(__file__).parents[1] / "data" / "llama_sp"
PROMPTS = {"model": "m", "prompt": [f"prompt {i}" for i in range(128)], "n": 20, "max_tokens": 2000, "ignore_eos": True}
LONG = {"model": "m", "messages": HI, "max_tokens": 4000, "ignore_eos": True}


def ask(target: Target, client: str, path: str, body: dict[str, Any]) -> socket.socket:
    """Sends a request without reading its answer."""
    sock = target.connect()
    sock.sendall(request(path, body, x_forwarded_for=client))
    return sock


def chat(target: Target, client: str, **fields: Any) -> CompletedChoice:
    with ask(target, client, CHAT, {"model": "m", "messages": HI, "max_tokens": 5, **fields}) as sock:
        return read_answer(sock)


def answered(socks: list[socket.socket]) -> list[int]:
    """Returns the statuses of the answers that have arrived."""
    found = []
    for sock in socks:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            found.append(int(sock.recv(65536)[9:12]))
    return found


def busy(target: Target) -> bool:
    try:
        return target.metric("vllm:num_requests_waiting") > 2000
    except AssertionError:
        return False  # the engine did not answer within the second that a scrape waits


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """A server with trusted proxies, so that one address can act as many clients."""
    flags = ["--trusted_proxies", "127.0.0.1", "--max_sequences_per_request", "2560", "--access_log", "false"]
    # Thousands of answers would never end.
    flags += ["--max_queued_requests_per_client", "128", "--drain_timeout_s", "1"]
    with start_target(tmp_path, "--model_path", str(LLAMA), *flags) as opened:
        yield opened


@pytest.mark.model
def test_t37_a_client_with_thousands_of_sequences_keeps_nobody_waiting(target: Target) -> None:
    long = {**LONG, "max_tokens": PROMPTS["max_tokens"]}
    socks = [ask(target, "10.0.0.1", CHAT, long) for _ in range(100)]
    socks += [ask(target, "10.0.0.1", "/v1/completions", PROMPTS)]
    until(lambda: busy(target))
    socks += [ask(target, "10.0.0.1", CHAT, long) for _ in range(156)]
    for _ in range(8):  # after the other client's requests, they would be served only after its first answers
        assert chat(target, "10.0.0.2").status == 200
    assert set(answered(socks)) <= {429}
    for sock in socks:
        sock.close()


def test_t37_the_requests_of_a_client_in_the_queue_are_limited(tmp_path: Path) -> None:
    flags = ["--trusted_proxies", "127.0.0.1", "--plugin_config", '{"step_s": 0.005}', "--max_num_seqs", "1"]
    with start_target(
        tmp_path, *flags, "--max_queued_requests_per_client", "2", "--max_queued_tokens_per_client", "200"
    ) as target:
        socks = [ask(target, "10.0.0.1", CHAT, LONG)]
        until(lambda: target.metric("vllm:num_requests_running") == 1)
        socks += [ask(target, "10.0.0.1", CHAT, LONG) for _ in range(2)]
        until(lambda: target.metric("vllm:num_requests_waiting") == 2)
        refused = chat(target, "10.0.0.1")
        assert refused.status == 429
        assert "2 requests of this client" in refused.error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        large = [{"role": "user", "content": "x" * 300}]
        socks += [ask(target, "10.0.0.2", CHAT, {**LONG, "messages": large})]
        until(lambda: target.metric("vllm:num_requests_running") + target.metric("vllm:num_requests_waiting") == 4)
        refused = chat(target, "10.0.0.2")
        assert refused.status == 429
        assert "prompt tokens of this client" in refused.error["message"]
        for sock in socks:
            sock.close()
