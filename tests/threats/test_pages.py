"""Requests that a browser sends for pages of other sites, as bytes (README.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

import pytest

from tests.threats.target import CHAT, HI, Target, read_answer, request, start_target

BODY = {"model": "m", "messages": HI, "max_tokens": 2}


@pytest.fixture(scope="module")
def named_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server for the pages of one origin."""
    flags = ["--allowed_origins", "http://good.example"]
    with start_target(tmp_path_factory.mktemp("named"), *flags) as target:
        yield target


def blob(path: str, body: object, host: str, *more: str) -> bytes:
    """Returns what `fetch` sends in the mode no-cors for a Blob without a type."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(data)}", *more, "", ""]
    return "\r\n".join(lines).encode() + data


CHANGES: tuple[tuple[str, object], ...] = (
    ("/sleep", {}),
    ("/sleep?level=0&mode=abort", {}),
    ("/models/unload", {"model": "m"}),
    ("/models/load", {"model": "m"}),
    ("/v1/config/reload", {}),
    ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/etc"}),
)


def test_t40_no_page_changes_a_server_without_a_key(target: Target) -> None:
    evil = "http://evil.example"
    for (path, body), kind in product(CHANGES, ("", "text/plain", "application/json")):
        more = [f"Content-Type: {kind}"] * bool(kind)
        for host, origin in (("127.0.0.1", evil), ("evil.example", evil), ("a", "null")):
            answer = target.raw(blob(path, body, host, f"Origin: {origin}", *more))
            assert (answer.status, answer.error["type"]) == (403, "permission_error")
        rebound = target.raw(blob(path, body, "evil.example", *more))
        assert (rebound.status, rebound.error["code"]) == (403, "host_not_allowed")
    assert target.raw(b"GET /is_sleeping HTTP/1.1\r\nHost: a\r\n\r\n", method="GET").json == {"is_sleeping": False}


def test_t40_the_body_of_what_is_refused_is_not_waited_for(named_target: Target) -> None:
    head, _, _ = request(CHAT, BODY, origin="http://evil.example").partition(b"\r\n\r\n")
    with named_target.connect() as sock:
        sock.sendall(head.replace(b"Content-Length: ", b"Content-Length: 999") + b"\r\n\r\n")
        assert read_answer(sock).status == 403
