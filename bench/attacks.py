"""The largest requests that a server accepts, those that cost it the most, for `bench stall --attacks`."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

MB = 1 << 20
SIZE = 30 * MB
TEXT = "all work and no play " * (SIZE // 21)
Ask = Callable[[str, str, "bytes | None"], bytes]
VALUES = 80_000
"""Empty objects: with their commas and brackets as many values as a body may have."""


Deed = Callable[[int], None]
"""Is called with the server's port, in a thread: what takes the interpreter long has been done before."""


def cases() -> dict[str, Callable[[], Deed]]:
    """By name, what prepares a deed."""
    return {
        "30 MB of text in a chat": _posts("/v1/chat/completions", _chat(TEXT)),
        "30 MB of text in a completion": _posts("/v1/completions", {"model": "demo", "prompt": TEXT}),
        "24 MB of Chinese": _posts("/v1/chat/completions", _chat("中文字" * (8 * MB // 3)), ascii_only=False),
        "30 MB of image data": _posts("/v1/chat/completions", _image("QUJD" * (SIZE // 4))),
        "2 MB of escapes": _posts("/v1/chat/completions", _chat("\n" * MB)),
        "a list of 80,000 objects": _posts("/v1/completions", {"model": "demo", "prompt": [{}] * VALUES}),
        "a list of 250,000 token ids": _posts("/v1/completions", {"model": "demo", "prompt": [7] * 250_000}),
        "250,000 texts, 30 MB": _posts("/v1/completions", {"model": "demo", "prompt": ["x" * 112] * 250_000}),
        "30 MB of tools": _posts("/v1/chat/completions", {**_chat("hi"), "tools": [_tool(TEXT)]}),
        "30 MB of text to tokenize": _posts("/tokenize", {"model": "demo", "prompt": TEXT}),
        "1 MB of line breaks as ids and strings": _posts(
            "/tokenize", {"model": "demo", "prompt": "\n" * (MB - 8), "return_token_strs": True}
        ),
        "200,000 ids to text": _posts("/detokenize", {"model": "demo", "tokens": list(range(300, 1300)) * 200}),
        "30 MB of instructions": _posts(
            "/v1/responses", {"model": "demo", "input": "hi", "instructions": TEXT, "store": False}
        ),
        "4 MB echoed and stored": _posts(
            "/v1/responses", {"model": "demo", "input": "hi", "user": TEXT[: 4 * MB], "max_output_tokens": 2}
        ),
        "20 items of 1.5 MB, listed": _items(20, TEXT[: 3 * MB // 2]),
        "5,000 small items, listed": _items(5000, "hello"),
        "20 MB of metadata": _posts("/v1/chat/completions", {**_chat("hi"), "metadata": {"a": TEXT[: 20 * MB]}}),
        "100,000 variables for the template": _posts(
            "/v1/chat/completions", {**_chat("hi"), "chat_template_kwargs": {f"k{n}": n for n in range(100_000)}}
        ),
        "5,000 tools, one required": _posts(
            "/v1/chat/completions",
            {**_chat("hi"), "tools": [_tool("x", f"f{n}") for n in range(5000)], "tool_choice": "required"},
        ),
        "40,000 log probabilities": _posts(
            "/v1/chat/completions",
            {**_chat("hi"), "n": 20, "max_tokens": 100, "ignore_eos": True, "logprobs": True, "top_logprobs": 20},
        ),
        **_parts(),
    }


def _parts() -> dict[str, Callable[[], Deed]]:
    """Small bodies whose parts multiply: each of many parts is worked on together with all of another field."""
    words = "all work and no play "
    many = {"model": "demo", "messages": [_HI] * 128, "max_tokens": 1}
    ids = [7] * 130_000
    batch, scoring = "/v1/chat/completions/batch", "/v1/generative_scoring"
    tools, large = [_tool(words * 20, f"f{n}") for n in range(22)], [_tool(words * 20, f"f{n}") for n in range(175)]
    questions = [{"type": "predicate", "instructions": f"Is it {n}?"} for n in range(128)]
    format_ = {"type": "json_schema", "json_schema": {"name": "f", "schema": _schema(60)}}
    return {
        "parts: 128 chats with 10 KB of tools": _posts(batch, {**many, "tools": tools}),
        "parts: 128 chats with 80 KB of tools": _posts(batch, {**many, "tools": large}),
        "parts: eight times 128 chats with 80 KB of tools": _posts(batch, {**many, "tools": large}, at_once=8),
        "parts: 128 chats with a schema": _posts(batch, {**many, "response_format": format_}),
        "parts: 128 items with 390 KB of a query": _posts(
            scoring, {"model": "demo", "query": words * 18_570, "items": ["a"] * 128, "label_token_ids": [7]}
        ),
        "parts: 128 items with 130,000 ids of a query": _posts(
            scoring, {"model": "demo", "query": ids, "items": [[8]] * 128, "label_token_ids": [7]}
        ),
        "parts: 128 questions about 300 KB": _posts(
            "/v1/decisions", {"model": "demo", "input": words * 14_000, "questions": questions}
        ),
        "parts: 20 answers to each of 25 prompts": _posts(
            "/v1/completions", {"model": "demo", "prompt": [words] * 25, "n": 20, "max_tokens": 16, "ignore_eos": True}
        ),
        "parts: 128 prompts with 16 stops and 300 biases": _posts(
            "/v1/completions",
            {
                "model": "demo",
                "prompt": ["a"] * 128,
                "max_tokens": 1,
                "stop": [f"stop {n}" for n in range(16)],
                "logit_bias": {str(n): 1 for n in range(300)},
            },
        ),
        "parts: 2,000 texts and 2,000 scored, eight at once": _posts(
            "/v1/score",
            {
                "model": "demo-embed",
                "text_1": [f"text {n}" for n in range(2000)],
                "text_2": [f"other {n}" for n in range(2000)],
            },
            at_once=8,
        ),
        "parts: 200 times /openapi.json, pipelined": _pipelined("/openapi.json", 200),
    }


_HI = [{"role": "user", "content": "Hi"}]


def _schema(count: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}


WARMED = (
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/decisions",
    "/v1/generative_scoring",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
)


def warm_up(port: int) -> None:
    """Let the server import the endpoints: the first request of its life does."""
    with _connection(port) as ask:
        for path in WARMED:
            ask("POST", path, b"{}")
        ask("POST", "/v1/score", b'{"model":"demo-embed","text_1":"a","text_2":"b"}')
        ask("GET", "/openapi.json", None)
        ask("GET", "/v1/conversations/conv_none/items", None)


def _chat(text: str) -> dict[str, object]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 1}


def _image(data: str) -> dict[str, object]:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return {"model": "demo", "messages": [{"role": "user", "content": [part]}], "max_tokens": 1}


def _tool(text: str, name: str = "f") -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "description": text, "parameters": {"type": "object"}}}


def _posts(path: str, body: dict[str, object], *, ascii_only: bool = True, at_once: int = 1) -> Callable[[], Deed]:
    def prepare() -> Deed:
        data = json.dumps(body, ensure_ascii=ascii_only).encode()

        def ask_three(port: int) -> None:
            with _connection(port) as ask:
                for _ in range(3 if at_once == 1 else 1):
                    ask("POST", path, data)

        def deed(port: int) -> None:
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(ask_three, [port] * at_once))

        return deed

    return prepare


def _pipelined(path: str, count: int) -> Callable[[], Deed]:
    """GETs on one connection, sent before any is answered."""

    def deed(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 120) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * (count - 1))
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            while sock.recv(1 << 20):
                pass

    return lambda: deed


def _items(count: int, text: str) -> Callable[[], Deed]:
    """A conversation with items of this text, which is listed and deleted."""

    def prepare() -> Deed:
        item = {"type": "message", "role": "user", "content": text}
        data = json.dumps({"items": [item] * count}).encode()

        def deed(port: int) -> None:
            with _connection(port) as ask:
                made = json.loads(ask("POST", "/v1/conversations", data))
                path = f"/v1/conversations/{made['id']}"
                for _ in range(3):
                    ask("GET", f"{path}/items?limit=100", None)
                ask("DELETE", path, None)

        return deed

    return prepare


@contextmanager
def _connection(port: int) -> Iterator[Ask]:
    """A function that asks on one connection and returns the body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:

        def ask(method: str, path: str, data: bytes | None) -> bytes:
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            assert answer.status < 500 or answer.status == 503, answer.status
            return answer.read()

        yield ask


def names(word: str = "") -> list[str]:
    """Those of the cases, or of those whose name contains a word."""
    return [name for name in cases() if word in name]
