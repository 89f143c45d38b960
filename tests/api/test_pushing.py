"""A stream's content and its record are the same however tokens arrive and the client reads."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.features.chat import api as chat
from tests.fakes import say
from tests.streams import Gate

from .conftest import MakeApp, parts, post

PIECES = ("<think>", "a ", "b", "</think>", "Hel", "lo ", "STO", "RM ", 'quote " 🙂', "STO", "P", "never")
MESSAGE = {"messages": [{"role": "user", "content": "x"}]}
REQUESTS = {
    "chat": ("/v1/chat/completions", MESSAGE),
    "chat, usage": ("/v1/chat/completions", {**MESSAGE, "stream_options": {"include_usage": True}}),
    "chat, stop": ("/v1/chat/completions", {**MESSAGE, "stop": ["STOP"]}),
    "chat, logprobs": ("/v1/chat/completions", {**MESSAGE, "logprobs": True}),
    "chat, choices": ("/v1/chat/completions", {**MESSAGE, "n": 2, "stop": "STOP"}),
    "chat, ids": ("/v1/chat/completions", {**MESSAGE, "return_token_ids": True}),
    "completions": ("/v1/completions", {"prompt": "x", "echo": True}),
    "completions, logprobs": ("/v1/completions", {"prompt": "x", "logprobs": 0}),
    "completions, prompts": ("/v1/completions", {"prompt": ["x", "y"]}),
    "messages": ("/v1/messages", {**MESSAGE, "max_tokens": 90}),
    "responses": ("/v1/responses", {"input": "x", "store": False}),
}
PATTERNS = [[False], [True, False, False], [False, True]]
JOINED = {"content", "text", "reasoning", "reasoning_content", "thinking", "delta", "arguments"}
"""Members whose texts a client joins. It also joins lists; of all others, the last value counts."""
DIFFERENT = {"id", "item_id", "created", "created_at", "completed_at", "sequence_number", "obfuscation"}


def content(body: bytes) -> dict[str, Any]:
    """Returns what a client makes of a stream, by position: the choice or the type of event, and the path within it."""
    found: dict[str, Any] = {}

    def add(place: str, key: str, value: Any) -> None:
        if key in DIFFERENT:
            return
        if isinstance(value, dict):
            place = f"{place}/{key}{value.get('index', '')}"
            for name, inner in value.items():
                add(place, name, inner)
        elif isinstance(value, list) and value and isinstance(value[0], dict) and "index" in value[0]:
            for item in value:
                add(place, key, item)
        elif isinstance(value, list) or (key in JOINED and isinstance(value, str)):
            found[f"{place}/{key}"] = (found.get(f"{place}/{key}") or type(value)()) + value
        elif value is not None:
            found[f"{place}/{key}"] = value

    for block in re.sub(rb"(?:msg|rs|resp)_[0-9a-f]+", b"", body).split(b"\n\n"):
        _, _, data = block.partition(b"data: ")
        if data and data != b"[DONE]":
            event = orjson.loads(data)
            add("", event.get("type", ""), event)
    found["ended"] = body.endswith(b"data: [DONE]\n\n")
    return found


async def sent(app: App, path: str, body: Any, pattern: Sequence[bool]) -> bytes:
    """Returns the body from a sink that is open or closed in turns of the loop, as the pattern says."""
    response = await post(app, path, body)
    assert not isinstance(response.body, bytes)
    gate = Gate[bytes](response.body)
    for is_open in itertools.cycle(pattern):
        if not is_open:
            gate.shut()
        for _ in range(7):
            await asyncio.sleep(0)
        gate.open()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if gate.task.done():
            break
    await gate.task
    await response.aclose()
    assert not app.registry.models["m"].engine.mail.busy  # type: ignore[attr-defined]
    return b"".join(gate.pieces)


@pytest.mark.parametrize("parser", ["none", "qwen3"])
@pytest.mark.parametrize("request_", REQUESTS)
async def test_a_client_that_stops_reading_for_a_while_gets_the_same(
    request_: str, parser: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fields = REQUESTS[request_]
    app, _ = await make_app(lambda *_: say(*PIECES, sequences=fields.get("n", 1)), reasoning_parser=parser)
    body = {"model": "m", "stream": True, **fields}

    whole = await sent(app, path, body, [True])
    one_by_one = content(whole)
    assert one_by_one
    for pattern in PATTERNS:
        assert content(await sent(app, path, body, pattern)) == one_by_one

    monkeypatch.setattr(chat.Chunks, "around", lambda *_: None)
    assert content(await sent(app, path, body, [True])) == one_by_one


@pytest.mark.parametrize("request_", REQUESTS)
async def test_any_cut_of_the_tokens_gives_the_same(request_: str, make_app: MakeApp) -> None:
    path, fields = REQUESTS[request_]
    text, found = 'Hello STORM, quote " and a STOP never', []
    for size in (1, 2, 5, 100):
        cut = [text[i : i + size] for i in range(0, len(text), size)]
        app, _ = await make_app(lambda *_, cut=cut: say(*cut, sequences=fields.get("n", 1)))  # type: ignore[misc]
        found.append(content(await sent(app, path, {"model": "m", "stream": True, **fields}, [True])))
    assert found == [found[0]] * len(found)


async def test_each_step_is_a_chunk_while_the_client_reads_and_a_slow_one_gets_them_merged(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say(*"abcdefgh"))
    chunks = [
        (await sent(app, "/v1/completions", {"model": "m", "prompt": "x", "stream": True}, pattern)).count(b'"text"')
        for pattern in ([True], [False])
    ]
    assert chunks[0] >= 8 > chunks[1]


async def test_what_is_pushed_is_recorded(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app, _ = await make_app(say(*PIECES), access_log=True)
    with caplog.at_level(logging.INFO, "lean_ovms.access"):
        body = await sent(app, "/v1/chat/completions", {"model": "m", "stream": True, **MESSAGE}, [True, False])
    [line] = [record.getMessage() for record in caplog.records if record.name == "lean_ovms.access"]
    assert f" {len(body)} B " in line


async def test_a_bug_in_a_push_ends_its_stream_alone(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, engine = await make_app(lambda *_: say(*PIECES))
    body: dict[str, Any] = {"model": "m", "stream": True, **MESSAGE}
    broken, sound = [await post(app, "/v1/chat/completions", body) for _ in range(2)]
    stream: Any = broken.body
    render = stream.renderer.deltas

    def deltas(deltas: list[Any]) -> bytes:
        if any("RM " in getattr(event, "text", "") for event in deltas[0].events):
            raise ZeroDivisionError
        return render(deltas)  # type: ignore[no-any-return]

    monkeypatch.setattr(stream.renderer, "deltas", deltas)

    ended = [part async for part in parts(broken)]
    others = [part async for part in parts(sound)]

    assert b"RM " not in b"".join(ended)
    assert b"internal_error" in ended[-1]
    assert ended[-1].endswith(b"[DONE]\n\n")
    [logged] = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert logged is ZeroDivisionError
    assert b"never" in b"".join(others)
    assert not engine.mail.busy
