"""Responses over a WebSocket, without sockets: events, what is kept for a connection, errors, closing."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pydantic
import pytest
from openai.types.responses import ResponsesServerEvent

from lean_ovms.api.app import BODY_FACTOR, App
from lean_ovms.features.embed.websocket import Closed, LocalWebSocket, WebSocketRefused, connect
from lean_ovms.features.responses.api import sockets as responses_websocket
from lean_ovms.features.responses.api.sockets import ResponseSockets
from lean_ovms.features.websocket.types import GOING_AWAY
from lean_ovms.types import Request
from lean_ovms.util import chunked_json, concurrency
from tests.api.conftest import MakeApp, get
from tests.fakes import say
from tests.features.responses.rules import Json, check

PATH = "/v1/responses"
EVENT: Any = pydantic.TypeAdapter(ResponsesServerEvent)


@asynccontextmanager
async def opened(app: App, path: str = PATH, **headers: str) -> AsyncIterator[LocalWebSocket]:
    sent = {"host": "server", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with connect(app.handle, Request("GET", path, headers=sent)) as websocket:
        yield websocket


async def told(websocket: LocalWebSocket) -> Json:
    event: Json = orjson.loads(await websocket.receive())
    EVENT.validate_python(event, strict=True)
    return event


async def create(websocket: LocalWebSocket, **fields: Any) -> list[Json]:
    """Returns the events of one response up to its last."""
    event = {"type": "response.create", "model": "m", "input": "hi", **fields}
    await websocket.send(orjson.dumps({k: v for k, v in event.items() if v is not None}).decode())
    events = [await told(websocket)]
    while events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
        events.append(await told(websocket))
    return events


@pytest.mark.parametrize("path", [PATH, "/v3/responses", "/responses"])
async def test_responses_one_after_the_other(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(say("Hel", "lo"))
    async with opened(app, path) as websocket:
        final = check(await create(websocket))
        assert final["output"][0]["content"][0]["text"] == "Hello"
        assert check(await create(websocket, input="more", previous_response_id=final["id"]))["store"]
        assert [prompt for prompt, _ in engine.submitted] == ["user:hi;", "user:hi;assistant:Hello;user:more;"]
        events = await create(websocket, stream_id="a")  # a lane is named in every event
        assert {event["stream_id"] for event in events} == {"a"}
        [error] = await create(websocket, stream_id="b", temperature=9)
        assert (error["stream_id"], error["error"]["param"]) == ("b", "temperature")
        assert "stream_id" not in (await create(websocket))[-1]
    assert (await get(app, f"{PATH}/{final['id']}")).status == 200


async def test_what_is_not_stored_is_kept_by_the_websocket(make_app: MakeApp) -> None:
    app, engine = await make_app(say("Hello"))
    async with opened(app) as websocket:
        stored = (await create(websocket))[-1]["response"]["id"]
        first = (await create(websocket, input="a", store=False, previous_response_id=stored))[-1]["response"]["id"]
        second = await create(websocket, input="b", store=False, previous_response_id=first)
        assert engine.submitted[-1][0] == "user:hi;assistant:Hello;user:a;assistant:Hello;user:b;"
        [error] = await create(websocket, store=False, previous_response_id=first)
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        again = await create(websocket, store=False, previous_response_id=second[-1]["response"]["id"])
        assert again[-1]["type"] == "response.completed"
    assert (await get(app, f"{PATH}/{first}")).status == 404
    async with opened(app) as websocket:
        assert (await create(websocket, previous_response_id=first))[-1]["type"] == "error"


async def test_a_prompt_is_prepared_without_an_answer(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    async with opened(app) as websocket:
        created, completed = await create(websocket, input="long", generate=False)
        assert (created["type"], created["response"]["status"]) == ("response.created", "in_progress")
        response = completed["response"]
        assert (response["output"], response["status"], response["usage"]["output_tokens"]) == ([], "completed", 0)
        assert engine.submitted[0][1].max_tokens == 1
        await create(websocket, previous_response_id=response["id"], input="go")
        assert engine.submitted[1][0] == "user:long;user:go;"
        [error] = await create(websocket, generate=False, input="")
        assert error["error"]["param"] == "input"


WRONG: list[tuple[str | bytes, str]] = [
    ("{", "invalid_json"),
    ("[]", "invalid_json"),
    (b"\xff", "invalid_json"),
    ('{"type":"x"}', "invalid_event"),
]


async def test_a_wrong_message_ends_nothing(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    async with opened(app) as websocket:
        for message, code in WRONG:
            await websocket.send(message)
            event = await told(websocket)
            assert (event["status"], event["error"]["code"]) == (400, code)
        for name, value in (("generate", "false"), ("generate", 0), ("stream_id", 5), ("stream_id", "a" * 257)):
            [error] = await create(websocket, **{name: value})
            assert (error["status"], error["error"]["param"], error.get("stream_id")) == (400, name, None)
        assert not engine.submitted
        await websocket.send('{"type":"response.steer","input":"no","previous_response_id":"r"}')
        event = await told(websocket)
        assert (event["type"], event["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
        assert event["steer"] == {"input": "no", "previous_response_id": "r"}
        await websocket.send(orjson.dumps({"type": "response.steer", "input": "a" * 100_000}).decode())
        assert (await told(websocket))["steer"] == {"input": "", "previous_response_id": ""}
        assert (await create(websocket))[-1]["type"] == "response.completed"


async def test_the_key_and_the_limit(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), api_key="k", max_response_websockets=1)
    with pytest.raises(WebSocketRefused) as refused:
        async with opened(app):
            pass
    assert refused.value.response.status == 401
    async with opened(app, sec_websocket_protocol="openai-insecure-api-key.k") as websocket:
        assert (await create(websocket))[-1]["type"] == "response.completed"
        with pytest.raises(WebSocketRefused) as refused:
            async with opened(app, authorization="Bearer k"):
                pass
        assert refused.value.response.status == 429
    async with opened(app, authorization="Bearer k") as websocket:
        assert (await create(websocket))[-1]["type"] == "response.completed"
    assert (await get(app, PATH, authorization="Bearer k")).status == 426


async def test_a_key_with_one_request_at_a_time_can_use_a_websocket(make_app: MakeApp, tmp_path: Path) -> None:
    file, digest = tmp_path / "keys", hashlib.sha256(b"k").hexdigest()
    file.write_text(json.dumps({"alice": {"sha256": digest, "max_parallel_requests": 1, "models": ["m"]}}))
    app, engine = await make_app(lambda *_: say("x"), api_key_file=str(file))
    async with opened(app, sec_websocket_protocol="openai-insecure-api-key.k") as websocket:
        for _ in range(2):
            assert (await create(websocket))[-1]["type"] == "response.completed"
        assert (await create(websocket, model="other"))[-1]["error"]["code"] == "model_not_found"
        assert [client for client, *_ in engine.origins] == ["key:alice"] * 2
        file.write_text("{}")
        await app.services.keys.reload()
        assert (await create(websocket))[-1]["status"] == 401  # the key was revoked


@pytest.mark.slow
async def test_a_websocket_is_closed_when_the_server_stops_or_its_time_is_over(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    async with opened(app) as websocket:
        await create(websocket)
        await asyncio.wait_for(app.drain(60), 60)
        with pytest.raises(Closed) as closed:
            await websocket.receive()
        assert closed.value.close.code == GOING_AWAY
    app, _ = await make_app(say("x"), max_realtime_session_s=1)
    async with opened(app) as websocket:
        with pytest.raises(Closed) as closed:
            await websocket.receive()
        assert closed.value.close.reason.endswith("(--max_realtime_session_s)")


async def test_a_client_that_leaves_ends_its_response(make_app: MakeApp) -> None:
    app, engine = await make_app([[(0, "x", None)]])
    async with opened(app) as websocket:
        await websocket.send('{"type":"response.create","model":"m","input":"hi"}')
        assert (await told(websocket))["type"] == "response.created"
    assert len(engine.cancelled) == 1


async def test_a_conversation_beyond_the_limit_of_a_body_is_refused(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x" * 600), max_body_bytes=1024)
    async with opened(app) as websocket:
        last = (await create(websocket, store=False))[-1]["response"]["id"]
        [error] = await create(websocket, store=False, input="y" * 600, previous_response_id=last)
        assert error["status"] == 413


# --- large messages


LOGPROB = {"token": "a" * 90_000, "logprob": -0.1, "bytes": [97], "top_logprobs": []}
OLD = {"role": "assistant", "content": [{"type": "output_text", "text": "old", "logprobs": [LOGPROB] * 20}]}


async def test_a_large_message_is_read_beside_the_loop_and_counts_as_a_body(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, engine = await make_app(say("x"))
    seen: list[tuple[int, int, bool]] = []
    original = chunked_json.loads

    def loads(data: bytes) -> Any:
        if len(data) > chunked_json.PIECE_BYTES:
            seen.append((len(data), app.services.bodies.used, threading.current_thread() is threading.main_thread()))
        return original(data)

    monkeypatch.setattr(chunked_json, "loads", loads)
    async with opened(app) as websocket:
        await create(websocket, input="a" * 400_000, truncation="auto")
        assert len(seen) == 2  # the message, and the body that it becomes
        for size, taken, on_loop in seen:
            assert taken == BODY_FACTOR * size > BODY_FACTOR * 400_000
            assert not on_loop
        assert app.services.bodies.used == 0
        await create(websocket, input="a" * 1000)
        assert len(seen) == 2
    assert engine.submitted[-1][0] == f"user:{'a' * 1000};"


@pytest.mark.slow
async def test_a_large_answer_is_one_message_and_its_next_turn_goes_on(make_app: MakeApp) -> None:
    app, engine = await make_app(say(*["ab" * 8] * 12), capable=True)
    async with opened(app) as websocket:
        logprobs = {"top_logprobs": 20, "include": ["message.output_text.logprobs"], "store": False}
        for lane in (None, "lane"):
            events = await create(websocket, stream_id=lane, **logprobs)
            final = check([{k: v for k, v in event.items() if k != "stream_id"} for event in events])
            [item] = final["output"]
            assert len(item["content"][0]["logprobs"]) == 192
            assert len(orjson.dumps(item)) > 2 * chunked_json.PIECE_BYTES
            assert {event.get("stream_id") for event in events} == {lane}
            await create(websocket, input="more", previous_response_id=final["id"])
            assert engine.submitted[-1][0] == f"user:hi;assistant:{'ab' * 96};user:more;"


async def test_a_large_message_waits_for_room_like_a_body(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 0.05)
    app, _ = await make_app(say("x"), max_body_memory_mb=1)
    async with opened(app) as websocket:
        lease = await app.services.count_body(1 << 20)
        [error] = await create(websocket, user="a" * 400_000)
        assert (error["status"], error["error"]["code"]) == (503, "too_many_large_requests")
        assert (await create(websocket))[-1]["type"] == "response.completed"  # a small one still works
        lease.release()
        assert (await create(websocket, user="a" * 400_000))[-1]["type"] != "error"
    assert (app.services.bodies.used, app.services.bodies.waiting) == (0, 0)


@pytest.mark.slow
async def test_nothing_of_a_finished_response_stays_but_what_its_continuation_needs(make_app: MakeApp) -> None:
    app, engine = await make_app(say("new"))
    async with opened(app) as websocket:
        await create(websocket, store=False)
        gc.collect()
        gc.disable()  # memory is freed without a garbage collection
        tracemalloc.start()
        try:
            final = (await create(websocket, store=False, input=[OLD, {"role": "user", "content": "hi"}]))[-1]
            assert tracemalloc.get_traced_memory()[1] > 3_000_000
            assert tracemalloc.get_traced_memory()[0] < 300_000
        finally:
            tracemalloc.stop()
            gc.enable()
        [socket] = app.services.get(ResponseSockets).sessions
        assert 0 < socket.kept.size < 1000
        await create(websocket, store=False, input="go", previous_response_id=final["response"]["id"])
        assert engine.submitted[-1][0] == "assistant:old;user:hi;assistant:new;user:go;"


async def test_what_all_websockets_keep_is_limited(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_websocket, "KEPT_SHARE", 1000)
    app, _ = await make_app(say("x"), max_body_memory_mb=1)
    async with opened(app) as long, opened(app) as short:
        ids = []
        for websocket, text in ((short, "a"), (long, "a" * 900)):
            ids.append((await create(websocket, store=False, input=text))[-1]["response"]["id"])
        sockets = app.services.get(ResponseSockets)
        assert sorted(bool(socket.kept.size) for socket in sockets.sessions) == [False, True]
        [error] = await create(long, store=False, previous_response_id=ids[1])
        assert error["error"]["code"] == "previous_response_not_found"
        assert (await create(short, store=False, previous_response_id=ids[0]))[-1]["type"] == "response.completed"
    assert not sockets.sessions


@pytest.mark.slow
async def test_a_long_chain_keeps_each_item_once(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    async with opened(app) as websocket:
        last = None
        for _ in range(30):
            last = (await create(websocket, store=False, previous_response_id=last))[-1]["response"]["id"]
        [socket] = app.services.get(ResponseSockets).sessions
        while len(socket.kept.turns) < 60:  # turns are kept after the last event is sent
            await asyncio.sleep(0)
        items = orjson.loads(b"[%b]" % b",".join(socket.kept.turns))
        assert [item["role"] for item in items] == ["user", "assistant"] * 30
    assert engine.submitted[-1][0] == "user:hi;assistant:x;" * 29 + "user:hi;"
