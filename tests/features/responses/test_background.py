"""Background responses continue without a client, and can be retrieved, cancelled, deleted, and streamed from any
event."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.errors import EngineFailure
from lean_ovms.features.responses.service import ResponseService
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, get, parts, post, whole
from tests.fakes import FakeEngine, say
from tests.features.responses.rules import PATH, Json, ask, check, check_response, parse_sse, refused
from tests.waiting import until


class Slow:
    """An app whose engine generates what the test feeds it, when the test feeds it."""

    def __init__(self, app: App, engine: FakeEngine) -> None:
        self.app, self.engine = app, engine

    async def start(self, **fields: Any) -> Json:
        """Returns the response object at the start. If `stream` is true, the client disconnects after the first
        events."""
        response = await post(self.app, PATH, ask(**{"background": True, **fields}))
        assert response.status == 200, response.body
        if fields.get("stream"):
            found = parts(response)
            first = parse_sse(await found.__anext__() + b"data: [DONE]\n\n")
            await found.aclose()
            assert first[-1]["type"] == "response.queued"
            return dict(first[-1]["response"])
        body: Json = await whole(response)
        return body

    async def say(self, text: str, reason: str | None = None) -> None:
        number = next(iter(self.engine.mail._replies))
        self.engine._play(number, [[(0, text, reason)]], self.engine.submitted[-1][1])
        for _ in range(5):
            await asyncio.sleep(0)

    async def get(self, response_id: str) -> Json:
        body: Json = await whole(await get(self.app, f"{PATH}/{response_id}"))
        check_response(body)
        return body

    async def until_over(self, response_id: str) -> Json:
        while (body := await self.get(response_id))["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0)
        return body

    async def stream(self, response_id: str, after: int | None = None) -> list[Json]:
        query = "stream=true" + ("" if after is None else f"&starting_after={after}")
        response = await self.app.handle(Request("GET", f"{PATH}/{response_id}", query=query))
        assert response.status == 200, response.body
        if isinstance(response.body, bytes):
            return parse_sse(response.body)
        found = [part async for part in parts(response)]
        assert all(found), "an empty part would end a chunked body"
        return parse_sse(b"".join(found))

    async def cancel(self, response_id: str) -> Json:
        response = await post(self.app, f"{PATH}/{response_id}/cancel", b"")
        assert response.status == 200, response.body
        body: Json = await whole(response)
        return body


@pytest.fixture
async def slow(make_app: MakeApp) -> Slow:
    app, engine = await make_app([])
    return Slow(app, engine)


async def test_a_background_response_is_answered_at_once_and_goes_on_alone(slow: Slow) -> None:
    body = await slow.start()
    assert (body["status"], body["background"], body["output"]) == ("queued", True, [])
    assert await slow.get(body["id"]) == body
    await slow.say("Hel")
    seen = await slow.get(body["id"])
    assert (seen["status"], seen["output"][0]["status"]) == ("in_progress", "in_progress")
    assert seen["output"][0]["content"][0]["text"] == "Hel"
    await slow.say("lo", "stop")
    final = await slow.until_over(body["id"])
    assert final["status"] == "completed"
    assert final["output"][0]["content"][0]["text"] == "Hello"
    assert not slow.engine.mail.busy
    assert await slow.cancel(body["id"]) == final, "which is over"
    for response_id, status in (("resp_no", 404), (await _plain(slow), 400)):
        assert (await post(slow.app, f"{PATH}/{response_id}/cancel", b"")).status == status


async def test_its_events_are_sent_from_any_number_while_it_runs_and_after(slow: Slow) -> None:
    body = await slow.start(stream=True)
    followers = [asyncio.ensure_future(slow.stream(body["id"], after)) for after in (None, 0, 3)]
    await slow.say("Hel")
    late = asyncio.ensure_future(slow.stream(body["id"], 1))
    early = asyncio.ensure_future(slow.stream(body["id"], 6))  # these events have not happened yet
    await slow.say("lo", "stop")
    whole_stream = await followers[0]
    assert check(whole_stream) == await slow.get(body["id"])
    assert whole_stream[0]["response"]["status"] == "queued"
    assert await followers[1] == whole_stream[1:]
    assert await followers[2] == whole_stream[4:]
    assert await late == whole_stream[2:]
    assert await early == whole_stream[7:]
    await slow.until_over(body["id"])
    assert await slow.stream(body["id"]) == whole_stream
    assert await slow.stream(body["id"], 5) == whole_stream[6:]
    assert await slow.stream(body["id"], 10**6) == []


async def test_a_cancelled_response_keeps_what_it_said(slow: Slow) -> None:
    body = await slow.start(stream=True)
    follower = asyncio.ensure_future(slow.stream(body["id"]))
    await slow.say("Hel")
    cancelled = await slow.cancel(body["id"])
    check_response(cancelled)
    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][0]["status"] == "incomplete"
    assert cancelled["usage"]["output_tokens"] == 3
    assert len(slow.engine.cancelled) == 1
    assert not slow.engine.mail.busy
    events = await follower
    assert check(events) == cancelled
    assert events[-1]["type"] == "response.incomplete"
    assert await slow.cancel(body["id"]) == cancelled == await slow.get(body["id"])


async def _plain(slow: Slow) -> str:
    """Returns the id of a response that was not made in the background."""
    task = asyncio.ensure_future(post(slow.app, PATH, ask()))
    while not slow.engine.mail._replies:
        await asyncio.sleep(0)
    await slow.say("Hello", "stop")
    return str((await whole(await task))["id"])


async def test_only_background_responses_with_a_stream_are_streamed_again(slow: Slow) -> None:
    response = await slow.app.handle(Request("GET", f"{PATH}/{await _plain(slow)}", query="stream=true"))
    assert response.status == 400
    assert "background" in (await whole(response))["error"]["message"]
    body = await slow.start()
    for over in (False, True):
        response = await slow.app.handle(Request("GET", f"{PATH}/{body['id']}", query="stream=true&starting_after=0"))
        assert response.status == 400
        error = (await whole(response))["error"]
        assert (error["param"], "created with background true and stream true" in error["message"]) == ("stream", True)
        if not over:
            await slow.say("Hello", "stop")
            assert (await slow.until_over(body["id"]))["status"] == "completed"
    for query, status in (("stream=maybe", 400), ("stream=true&starting_after=-1", 400), ("stream=true", 404)):
        assert (await slow.app.handle(Request("GET", f"{PATH}/resp_no", query=query))).status == status


async def test_deleting_a_running_response_stops_it_for_good(slow: Slow) -> None:
    body = await slow.start()
    await slow.say("Hel")
    response = await slow.app.handle(Request("DELETE", f"{PATH}/{body['id']}"))
    assert response.status == 200
    assert not slow.engine.mail.busy
    assert (await get(slow.app, f"{PATH}/{body['id']}")).status == 404


async def test_nothing_follows_from_a_response_that_is_not_finished_or_failed(make_app: MakeApp) -> None:
    app, engine = await make_app([])
    slow = Slow(app, engine)
    body = await slow.start()
    assert "not finished" in (await refused(app, previous_response_id=body["id"]))["message"]
    number = next(iter(engine.mail._replies))
    engine._play(number, [EngineFailure("it broke")], engine.submitted[-1][1])
    failed = await slow.until_over(body["id"])
    assert (failed["status"], failed["error"]["message"]) == ("failed", "it broke")
    assert "failed" in (await refused(app, previous_response_id=body["id"]))["message"]


async def test_a_stop_ends_what_runs_and_says_so(make_app: MakeApp, tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite")
    app, engine = await make_app([], response_store=path)
    slow = Slow(app, engine)
    body = await slow.start(stream=True)
    follower = asyncio.ensure_future(slow.stream(body["id"]))
    await slow.say("Hel")
    await app.drain(0)
    await app.close()
    assert (await follower)[-1]["type"] == "response.failed"
    again, _ = await make_app(lambda *_: say("x"), response_store=path)
    kept = await whole(await get(again, f"{PATH}/{body['id']}"))
    assert (kept["status"], kept["output"][0]["content"][0]["text"]) == ("failed", "Hel")
    assert not engine.mail.busy


async def test_pings_fill_a_silent_stream(make_app: MakeApp) -> None:
    app, engine = await make_app([], sse_ping_s=0.01)
    slow = Slow(app, engine)
    body = await slow.start(stream=True)
    response = await app.handle(Request("GET", f"{PATH}/{body['id']}", query="stream=true"))
    found = parts(response)
    assert (await found.__anext__()).startswith(b"event: response.created")
    assert await found.__anext__() == b": ping\n\n"
    await found.aclose()


async def test_turns_of_one_conversation_that_overlap_are_both_added(slow: Slow) -> None:
    conversation = (await whole(await post(slow.app, "/v1/conversations", {})))["id"]
    first = await slow.start(conversation=conversation, given="one")
    second = await slow.start(conversation=conversation, given="two")
    for said, body in (("A.", first), ("B.", second)):
        await slow.say(said, "stop")
        await slow.until_over(body["id"])
    listed = await whole(await get(slow.app, f"/v1/conversations/{conversation}/items"))
    assert [item["content"][0]["text"] for item in listed["data"]][::-1] == ["one", "A.", "two", "B."]
    inputs = await whole(await get(slow.app, f"{PATH}/{second['id']}/input_items"))
    assert [item["content"][0]["text"] for item in inputs["data"]] == ["two"], "it did not see the other"


async def test_a_client_that_leaves_while_its_response_is_stored_leaves_nothing(slow: Slow) -> None:
    store, busy = slow.app.services.get(ResponseService).store, threading.Event()
    before = asyncio.ensure_future(store._db.run(lambda db: busy.wait()))
    asked = asyncio.ensure_future(post(slow.app, PATH, ask(background=True)))
    await until(lambda: bool(store._db._waiting and slow.engine.submitted))
    asked.cancel()
    busy.set()
    await asyncio.wait([asked, before])
    assert asked.cancelled()
    for table in ("entry", "run"):
        assert await store._db.run(lambda db, table=table: db.one(f"SELECT count(*) FROM {table}")) == 0
    assert len(slow.engine.cancelled) == 1
