"""Clients that disconnect, wait, read nothing or send slowly; full queues; engines that die (README.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.threats.target import (
    CHAT,
    HI,
    Bystander,
    CompletedChoice,
    Target,
    read_answer,
    read_arrived,
    request,
    start_target,
    until,
)

LONG = {"model": "m", "messages": HI, "max_tokens": 5000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def slow_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with one answer at a time, a token every 10 ms, a queue of six requests, and short timeouts."""
    flags = ["--plugin_config", '{"step_s": 0.01, "step_tokens": 64}', "--max_num_seqs", "1"]
    flags += ["--max_queued_requests", "6", "--header_timeout_s", "2", "--body_timeout_s", "2"]
    flags += ["--stream_stall_timeout_s", "0.5", "--max_connections", "40"]
    with start_target(tmp_path_factory.mktemp("slow"), *flags) as target:
        target.settle()
        yield target
        target.settle()


def leave(target: Target, data: bytes, when: str) -> None:
    """Sends a request and disconnects."""
    sock = target.connect()
    sock.sendall(data)
    if when == "after the first byte":
        sock.recv(1)
    elif when != "at once":
        until(lambda: target.metric("vllm:num_requests_running") + target.metric("vllm:num_requests_waiting") > 0)
    sock.close()


@pytest.mark.parametrize("stream", [False, True])
def test_t23_who_leaves_takes_the_work_along(slow_target: Target, stream: bool) -> None:
    # Prefilled in 94 steps.
    prefill = {**LONG, "messages": [{"role": "user", "content": "x" * 6000}], "max_tokens": 2000}
    for when in ("at once", "in the queue or prefill", *(["after the first byte"] if stream else [])):
        for ask in (LONG, prefill):
            leave(slow_target, request(CHAT, {**ask, "stream": stream}), when)
            slow_target.settle()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(slow_target.connect()) for _ in range(4)]
        for sock in socks:
            sock.sendall(request(CHAT, {**LONG, "stream": stream}))
        until(lambda: slow_target.metric("vllm:num_requests_waiting") == 3)
    slow_target.settle()


def test_t24_a_reader_that_takes_nothing_is_cut_and_holds_nobody_up(tmp_path: Path) -> None:
    flags = ["--stream_stall_timeout_s", "0.5", "--plugin_config", '{"context": 400000, "blocks": 60000}']
    with start_target(tmp_path, *flags) as target:
        target.settle()
        before_mb = target.resident_mb()
        sock = target.connect()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # is soon full
        many = {"max_tokens": 10_000, "n": 8, "temperature": 1, "stream": True, "logprobs": True}
        sock.sendall(request(CHAT, {**LONG, **many}))
        assert sock.recv(12) == b"HTTP/1.1 200"
        with Bystander(target) as bystander:
            target.settle()  # the stream is ended although its socket is open
        assert set(bystander.statuses) == {200}
        assert target.resident_mb() < before_mb + 32
        assert not read_arrived(sock).endswith(b"0\r\n\r\n")


def test_t25_slow_senders_get_408_and_keep_nobody_out(slow_target: Target) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    with Bystander(slow_target, max_tokens=1) as bystander:
        for data in (head, head + b"x" * 50):
            socks = [slow_target.connect() for _ in range(10)]
            for at in range(len(data) - 10):
                with contextlib.suppress(OSError):
                    for sock in socks:
                        sock.sendall(data[at : at + 1])
                time.sleep(0.01)
            assert [read_answer(sock).status for sock in socks] == [408] * 10
    assert set(bystander.statuses) == {200}
    slow_target.settle()


def test_t28_a_full_queue_is_429_with_an_honest_time_to_wait(slow_target: Target) -> None:
    ask = {**LONG, "max_tokens": 60}
    with ThreadPoolExecutor(24) as pool:
        answers: list[CompletedChoice] = list(pool.map(lambda _: slow_target.post(CHAT, ask), range(24)))
    served = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(served) + len(refused) == 24
    assert len(served) >= 7  # running and waiting requests
    assert refused
    for answer in refused:
        assert answer.error["code"] == "queue_full"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    slow_target.settle()


def test_t29_a_dead_engine_fails_who_ran_and_comes_back(tmp_path: Path) -> None:
    with start_target(tmp_path, "--plugin_config", '{"step_s": 0.01}') as target:
        with target.connect() as streaming, target.connect() as waiting:
            streaming.sendall(request(CHAT, {**LONG, "stream": True}))
            streaming.recv(1)
            waiting.sendall(request(CHAT, LONG))
            until(lambda: target.metric("vllm:num_requests_running") == 2)
            engine = target.engine()
            os.kill(engine, signal.SIGKILL)
            answer = read_answer(waiting)
            assert answer.status == 503
            assert answer.error["code"] == "engine_restarted"
            assert int(answer.headers["retry-after"]) >= 1
            ended = read_until_done(streaming)
            assert b"engine_restarted" in ended
        refused = target.chat()
        assert refused.status in (200, 503)
        assert target.get("/v2/health/live").status == 200
        until(lambda: target.get("/health").status == 200)
        assert target.engine() not in (0, engine)
        assert target.chat().status == 200


def read_until_done(sock: object) -> bytes:
    data = b""
    while b"data: [DONE]" not in data:
        piece = sock.recv(65536)  # type: ignore[attr-defined]
        assert piece
        data += piece
    return data


def test_t29_a_request_that_kills_engines_does_not_kill_the_server(tmp_path: Path) -> None:
    with start_target(tmp_path) as target:
        for trick in ("<|die|>", "<|raise|>"):
            answer = target.chat(messages=[{"role": "user", "content": trick}])
            assert answer.status in (500, 503)
            assert "/" not in answer.error["message"]
            until(lambda: target.get("/health").status == 200)
            assert target.chat().status == 200


# --- crowds ----------------------------------------------------------------------------------------------------------


def test_a_burst_of_500_requests_is_served_or_refused_and_leaves_nothing(tmp_path: Path) -> None:
    flags = ["--max_num_seqs", "64", "--max_queued_requests", "128", "--plugin_config", '{"step_s": 0.002}']
    with start_target(tmp_path, *flags, "--access_log", "false") as target:
        assert target.chat().status == 200
        target.settle()
        before_mb = target.resident_mb()
        socks = [target.connect() for _ in range(500)]
        answers: dict[int, CompletedChoice] = {}
        for place, sock in enumerate(socks):
            stream = place % 2 == 0
            sock.sendall(request(CHAT, {**LONG, "max_tokens": 10 + place % 40, "stream": stream}))

        def read(place: int) -> None:
            answers[place] = read_answer(socks[place])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(500)))
        assert len(answers) == 500
        statuses = [answer.status for answer in answers.values()]
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 128
        for answer in answers.values():
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1
            elif answer.body.startswith(b"data:"):
                assert answer.body.endswith(b"data: [DONE]\n\n")
                assert b'"finish_reason":"length"' in answer.body
            else:
                assert answer.json["choices"][0]["finish_reason"] == "length"
        for sock in socks:
            sock.close()
        target.settle()
        assert target.resident_mb() < before_mb + 64


def test_a_thousand_open_connections_are_no_burden(tmp_path: Path) -> None:
    with start_target(tmp_path, "--max_connections", "1400", "--access_log", "false") as target:
        target.settle()
        before_mb = target.resident_mb()
        socks = [target.connect() for _ in range(1000)]
        for sock in socks[::10]:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [read_answer(sock, "GET").status for sock in socks[::10]] == [200] * 100
        assert target.chat().status == 200
        assert target.resident_mb() < before_mb + 40  # at most 40 KB each
        for sock in socks[::10]:
            sock.sendall(request(CHAT, {"model": "m", "messages": HI, "max_tokens": 2}))
        assert [read_answer(sock).status for sock in socks[::10]] == [200] * 100
        for sock in socks:
            sock.close()
        target.settle()


def test_threads_of_large_requests_are_one(shared_target: Target) -> None:
    content = "word " * 20_000
    ask = request(CHAT, {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 1})
    shared_target.raw(ask)
    before = len(os.listdir(f"/proc/{shared_target.popen.pid}/task"))
    threads = [threading.Thread(target=shared_target.raw, args=(ask,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(os.listdir(f"/proc/{shared_target.popen.pid}/task")) <= before
