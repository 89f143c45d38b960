"""Bodies that no JSON library would write, generated from the API: a 2xx, or a 4xx with the error object, quickly.

They contain wrong types, extreme values, depth, length, lone surrogates, NaN, repeated names, and integers of any size.
Nothing else may happen: no 5xx (except 501 for what the server was not started for), no exception, no request left
running, and no iteration of the event loop over 50 ms of CPU time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lean_ovms.api.app import App
from lean_ovms.server.run import close
from lean_ovms.types import Request
from tests.api.test_every_field import PATHS
from tests.every_model import app_with_every_model
from tests.fuzz import examples
from tests.fuzz.stalls import longest_turn
from tests.streams import pieces

MOST_S = 0.05
MESSAGES = '[{"role":"user","content":"hi"}]'
HI = b'{"model":"m","messages":' + MESSAGES.encode()
RIGHT: dict[str, dict[str, str]] = {
    "/v1/chat/completions": {"model": '"m"', "messages": MESSAGES},
    "/v1/messages": {"model": '"m"', "max_tokens": "9", "messages": MESSAGES},
    "/v1/completions": {"model": '"m"', "prompt": '"hi"'},
    "/v1/responses": {"model": '"m"', "input": '"hi"'},
    "/v1/tokenize": {"model": '"m"', "text": '"hi"'},
    "/v1/detokenize": {"model": '"m"', "tokens": "[65]"},
    "/v1/conversations": {},
    "/v1/embeddings": {"model": '"embeddings"', "input": '["a",""]'},
    "/v1/v2/embed": {"model": '"embeddings"', "texts": '["a","b"]'},
    "/embed": {"model": '"embeddings"', "inputs": '["a","b"]'},
    "/decode": {"model": '"embeddings"', "ids": "[[65],[66]]"},
    "/mcp": {"id": "1", "method": '"tools/call"', "params": '{"name":"chat","arguments":{"prompt":"hi"}}'},
    "/v1/rerank": {"model": '"rerank"', "query": '"a"', "documents": '[{"text":"a"},{"text":"b"}]'},
    "/v1/score": {"model": '"embeddings"', "text_1": '"a"', "text_2": '["a","b"]'},
    "/v1/classify": {"model": '"classify"', "input": '"a"'},
    "/v1/pooling": {"model": '"embeddings"', "input": "[[1,2],[3]]"},
    "/v1/audio/speech": {"model": '"voice"', "input": '"The first sentence is here. The second one is there!"'},
    "/v1/images/generations": {"model": '"image"', "prompt": '"a cat"', "size": '"16x16"'},
    "/api/chat": {"model": '"m"', "messages": MESSAGES},
    "/api/generate": {"model": '"m"', "prompt": '"hi"'},
    "/api/embed": {"model": '"embeddings"', "input": '["a"]'},
    "/v1/v2/chat": {"model": '"m"', "messages": MESSAGES},
    "/completion": {"model": '"m"', "prompt": '"hi"'},
    "/infill": {"model": '"m"', "input_prefix": '"hi"'},
    "/inference/v1/generate": {"model": '"m"', "token_ids": "[65]", "sampling_params": "{}"},
    "/v1/decisions": {"model": '"m"'},
}
"""The usual content of a body, by path."""
TEXTS = ("chat/completions", "messages", "completions", "responses", "tokenize", "detokenize", "conversations")
GENERATING = [f"/v1/{name}" for name in TEXTS]
"""Paths whose largest bodies are tried too."""
ENDPOINTS = [path for path, doc in PATHS.items() if not doc.form and not path.startswith(("/api/pull", "/models/"))]
"""Every path that reads JSON, except those that change the list of models."""

SCALARS = st.sampled_from(
    ["null", "true", "false", "0", "1", "-1", "-0", "2", "0.5", "1e308", "1e309", "-1e308", "5e-324", "NaN",
     "Infinity", "-Infinity", "2147483648", "4294967296", "9223372036854775808", "18446744073709551616", "9" * 400,
     '""', '"x"', '"m"', '"auto"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\ud83d\\ude00"',
     '"a\\/b"', '"\x7f"',
     '"<|im_end|>"', '"json_object"', '"json_schema"', '"text"', '"function"', '"user"', "01", "+1", ".5", "1.", "'x'",
     "undefined", "[", "{", '"', "", '"\\x"', '"\n"', "\u2028", '"' + "x" * 5000 + '"']
)  # fmt: skip
MAX_TEXT = 1 << 18
NAMES = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "parameters", "schema", "json_schema", "tool_calls",
     "id", "arguments", "include_usage", "$ref", "properties", "items", "pattern", "format", "effort", "allowed_tools",
     "mode", "image_url", "url", "regex", "choice", "grammar", "json", "strict", "call_id", "output",
     "summary", "input_schema", "tool_use_id", "input", "source", "media_type", "data", "thinking", "x", ""]
)  # fmt: skip


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"


def _repeat(part: str, count: int) -> list[str]:
    """Returns `count` copies, fewer if they are long: HEAVY has the largest bodies, and writing them takes longer
    than reading."""
    return [part] * max(1, min(count, MAX_TEXT // max(1, len(part))))


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: "[" + ",".join(parts) + "]"),
        st.lists(st.tuples(NAMES, inner), max_size=5).map(_object),
        st.tuples(inner, st.sampled_from([3, 50, 400])).map(lambda of: "[" + ",".join(_repeat(*of)) + "]"),
        st.tuples(inner, st.sampled_from([5, 90, 300, 3000])).map(lambda of: "[" * of[1] + of[0] + "]" * of[1]),
        st.tuples(inner, st.sampled_from([5, 90, 300])).map(lambda of: '{"items":' * of[1] + of[0] + "}" * of[1]),
        inner.map(json.dumps),  # JSON within a text, like arguments of calls
    )


VALUES = st.recursive(SCALARS, _grown, max_leaves=6)


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    fields = [*(row.name for row in PATHS[path].body), "unknown", "stream", "stream_options"]
    pairs = [(name, value) for name, value in RIGHT.get(path, {"model": '"m"'}).items() if draw(st.integers(0, 9)) != 7]
    pairs += [(name, draw(VALUES)) for name in draw(st.lists(st.sampled_from(fields), max_size=2))]
    if draw(st.booleans()):
        pairs.reverse()
    return _object(pairs).encode("utf-8", "surrogatepass")


async def answered(app: App, path: str, data: bytes) -> tuple[int, bytes]:
    """Returns the status and the body of the answer to a request, after it was checked."""
    asked = Request("POST", path, headers={"content-type": "application/json"}, body=data)
    response = await app.handle(asked)
    try:
        parts = [response.body] if isinstance(response.body, bytes) else [part async for part in pieces(response.body)]
    finally:
        await response.aclose()
    body = b"".join(parts)
    assert 200 <= response.status < 300 or 400 <= response.status < 500 or response.status == 501, body
    if response.status >= 400:
        error = orjson.loads(body)["error"]
        if app.config.composition.error_forms.of(asked) is None:
            assert set(error) - {"details"} == {"message", "type", "param", "code"}
        assert error if isinstance(error, str) else error["message"]
    elif ("Content-Type", "application/json") in response.headers and path != "/v1/embeddings":
        orjson.loads(body)
    assert b"internal error" not in body
    for model in app.registry.models.values():
        await asyncio.wait_for(model.in_flight.drained(), 300)
    return response.status, body


class Served:
    """An app for all tests here, and its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._app = self._run(app_with_every_model())
        self._run(self._app.open())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._run(close(self._app))
        self._app.services.offload.close()
        self._loop.close()

    def longest_s(self, path: str, data: list[bytes]) -> float:
        """Returns how long the loop is blocked, as the least of up to three tries, because other work of the machine
        varies."""
        found = []
        while len(found) < 3 and min(found, default=MOST_S) >= MOST_S:
            with longest_turn() as longest:
                for one in data:
                    self._run(answered(self._app, path, one))
            found.append(longest.seconds)
        return min(found)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", ENDPOINTS)
def test_what_no_library_would_write_is_answered_soon(served: Served, path: str) -> None:
    @examples(40 if path in GENERATING else 20 if path in RIGHT else 5)
    @given(st.lists(bodies(path), min_size=4, max_size=4))
    def check(data: list[bytes]) -> None:
        assert served.longest_s(path, data) < MOST_S, data

    check()


HEAVY = {
    "messages": b'{"model":"m","messages":[' + b'{"role":"user","content":"hi"},' * 80_000 + b"{}]}",
    "short messages": HI[:-1] + b',{"role":"user","content":""}' * 80_000 + b"]}",
    "turns": b'{"model":"m","input":[' + b",".join([b'{"role":"user","content":"hi"}'] * 80_000) + b"]}",
    "Anthropic's messages": b'{"model":"m","max_tokens":9,"messages":['
    + b",".join([b'{"role":"user","content":[' + b",".join([b'{"type":"text","text":"a"}'] * 2) + b"]}"] * 20_000)
    + b"]}",
    "parts": HI[:-1] + b',{"role":"user","content":['
    + b",".join([b'{"type":"text","text":""}'] * 80_000) + b"]}]}",
    "tools": HI + b',"tool_choice":"required","tools":['
    + b",".join(b'{"type":"function","function":{"name":"f%d","parameters":{}}}' % i for i in range(10_000)) + b"]}",
    "tokens": b'{"model":"m","prompt":[' + b"1," * 250_000 + b"1]}",
    "tokens of a text": b'{"model":"m","tokens":[' + b"1," * 250_000 + b"1]}",
    "prompts": b'{"model":"m","prompt":[' + b'"a",' * 100_000 + b'"a"]}',
    "texts": b'{"model":"m","text":[' + b'"a",' * 100_000 + b'"a"]}',
    "text": b'{"model":"m","text":"' + b"x" * (30 << 20) + b'"}',
    "content": b'{"model":"m","messages":[{"role":"user","content":"' + b"\\n" * (15 << 20) + b'"}]}',
    "unknown objects": b'{"model":"m","x":[' + b'{"a":{}},' * 120_000 + b"1]}",
    "names": b'{"model":"m",' + b",".join(b'"k%d":0' % i for i in range(250_000)) + b"}",
    "items": b'{"model":"m","input":[' + b'{"role":"user","content":"hi"},' * 50_000 + b"{}]}",
    "items of a conversation": b'{"items":[' + b'{"role":"user","content":"hi"},' * 50_000 + b"{}]}",
    "schema": HI + b',"guided_json":{"enum":['
    + b",".join(b'"%d"' % i for i in range(7000)) + b"]}}",
    "pattern": HI + b',"guided_regex":"' + b"(a|b|c)*x?" * 6000 + b'"}',
    "stop": HI + b',"stop":['
    + b",".join(b'"%d%b"' % (i, b"a" * 1000) for i in range(16)) + b'],"n":20}',
}  # fmt: skip
UNKNOWN = ("names", "unknown objects")
"""Bodies of fields that no endpoint has."""


def heavy(path: str) -> list[str]:
    """Returns the names of the largest bodies with a field of this endpoint, and of those with unknown fields."""
    fields = [f'"{row.name}":'.encode() for row in PATHS[path].body if row.name != "model"]
    return [name for name, data in HEAVY.items() if name in UNKNOWN or any(field in data[:4096] for field in fields)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "path"), [(name, path) for path in GENERATING for name in heavy(path)])
def test_the_largest_bodies_do_not_hold_up_the_loop(served: Served, path: str, name: str) -> None:
    assert served.longest_s(path, [HEAVY[name]]) < MOST_S
