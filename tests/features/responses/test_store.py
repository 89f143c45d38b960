"""Stored responses: turns, items, references, conversations, limits, restarts, a failing disk."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseItemList

from lean_ovms.api.app import App
from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.errors import NotFound, StartError, StoreFailure, WrongOptions
from lean_ovms.features.responses import tables
from lean_ovms.features.responses.connection import Connection
from lean_ovms.features.responses.database import Database
from lean_ovms.features.responses.items import read_items
from lean_ovms.features.responses.service import ResponseService
from lean_ovms.features.responses.sqlite import Sqlite
from lean_ovms.features.responses.store import Context, Store
from lean_ovms.features.responses.tables import CONVERSATION
from lean_ovms.types import Request, Response
from lean_ovms.types.engine import EngineRequest
from tests.api.conftest import MakeApp, get, parts, post, whole
from tests.fakes import FakeEngine, say
from tests.features.responses.rules import PATH, Json, ask, parse_sse, refused, respond
from tests.streams import pieces
from tests.waiting import cancel

OpenApp = Callable[..., Awaitable[tuple[App, FakeEngine]]]


@pytest.fixture
def open_app(make_app: MakeApp) -> OpenApp:
    """Returns an app like make_app, with a script."""

    async def opened(script: Any = None, **options: Any) -> tuple[App, FakeEngine]:
        return await make_app(script or (lambda *_: say("Hi.")), **options)

    return opened


async def delete(app: App, path: str) -> Response:
    return await app.handle(Request("DELETE", path))


async def conversation(app: App, *texts: str) -> str:
    """Returns the id of a new conversation with these messages of a user."""
    items = [{"role": "user", "content": text} for text in texts]
    return str((await whole(await post(app, "/v1/conversations", {"items": items})))["id"])


async def test_a_response_is_there_until_it_is_deleted(open_app: OpenApp) -> None:
    app, _ = await open_app()
    body = await respond(app)
    url = f"{PATH}/{body['id']}"
    assert await whole(await get(app, url)) == body
    gone = await whole(await delete(app, url))
    assert gone == {"id": body["id"], "object": "response", "deleted": True}
    for response in (await get(app, url), await delete(app, url), await get(app, url + "/input_items")):
        assert response.status == 404
        assert body["id"] in (await whole(response))["error"]["message"]
    body = await respond(app, store=False)
    assert body["store"] is False
    assert (await get(app, f"{PATH}/{body['id']}")).status == 404
    item = {"type": "item_reference", "id": body["output"][0]["id"]}
    assert item["id"] in (await refused(app, [item], 404))["message"]


async def test_a_streamed_response_is_kept_before_its_last_event(open_app: OpenApp) -> None:
    app, _ = await open_app()
    response = await post(app, PATH, ask("hi", stream=True))
    data = b""
    async for part in parts(response):
        data += part
        if b"response.completed" in part:
            final = parse_sse(data)[-1]["response"]
            assert await whole(await get(app, f"{PATH}/{final['id']}")) == final


async def test_a_turn_follows_another_without_its_instructions_if_that_is_there(open_app: OpenApp) -> None:
    app, engine = await open_app()
    error = await refused(app, previous_response_id="resp_no")
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert error["message"] == "Previous response with id 'resp_no' not found."
    assert engine.submitted == []
    first = await respond(app, "one", instructions="Be brief.")
    second = await respond(app, "two", previous_response_id=first["id"])
    third = await respond(app, "three", previous_response_id=second["id"], instructions="Be long.", stream=False)
    assert third["previous_response_id"] == second["id"]
    assert [prompt for prompt, _ in engine.submitted] == [
        "system:Be brief.;user:one;",
        "user:one;assistant:Hi.;user:two;",
        "system:Be long.;user:one;assistant:Hi.;user:two;assistant:Hi.;user:three;",
    ]


async def test_input_items_come_in_pages(open_app: OpenApp, kept_in: str) -> None:
    app, _ = await open_app(response_store=kept_in)
    first = await respond(app, [{"role": "user", "content": str(i)} for i in range(4)])
    second = await respond(app, "last", previous_response_id=first["id"])
    url = f"{PATH}/{second['id']}/input_items"

    async def listed(query: str) -> Json:
        body: Json = await whole(await app.handle(Request("GET", url, query=query)))
        ResponseItemList.model_validate(body)
        return body

    def texts(body: Json) -> list[str]:
        return [item["content"][0]["text"] for item in body["data"]]

    assert texts(await listed("")) == ["last", "Hi.", "3", "2", "1", "0"]
    assert texts(await listed("order=asc")) == ["0", "1", "2", "3", "Hi.", "last"]
    page = await listed("order=asc&limit=4")
    assert (texts(page), page["has_more"]) == (["0", "1", "2", "3"], True)
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    page = await listed(f"order=asc&limit=2&after={page['last_id']}")
    assert (texts(page), page["has_more"]) == (["Hi.", "last"], False)
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_no"):
        assert (await app.handle(Request("GET", url, query=query))).status == 400


async def test_a_large_list_is_sent_as_it_is_stored(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = await open_app()
    item = {"type": "message", "role": "user", "content": "x" * 100_000}
    made = await whole(await post(app, "/v1/conversations", {"items": [item] * 5}))
    url = f"/v1/conversations/{made['id']}/items"
    monkeypatch.setattr(tables.chunked_json, "loads", None)  # no item is parsed
    response = await app.handle(Request("GET", url, query="order=asc&limit=4"))
    sent = [piece async for piece in pieces(response.body)]
    assert max(map(len, sent)) < 101_000
    listed = json.loads(b"".join(sent))
    assert [len(entry["content"][0]["text"]) for entry in listed["data"]] == [100_000] * 4
    assert (listed["first_id"], listed["last_id"]) == (listed["data"][0]["id"], listed["data"][-1]["id"])
    assert listed["has_more"]
    one = await app.handle(Request("GET", f"{url}/{listed['last_id']}"))
    assert json.loads(one.body) == listed["data"][-1]  # type: ignore[arg-type]
    added = await whole(await post(app, url, {"items": [{**item, "content": "y"}, {**item, "content": "z"}]}))
    assert [entry["content"][0]["text"] for entry in added["data"]] == ["y", "z"]


async def test_an_input_that_is_too_long_loses_its_oldest_turns_only_when_asked(open_app: OpenApp) -> None:
    from lean_ovms.errors import BadRequest

    app, engine = await open_app()
    submit = engine.submit

    async def picky(request: EngineRequest) -> Any:
        if len(request.prompt) > 40:
            raise BadRequest("too long", code="context_length_exceeded")
        return await submit(request)

    engine.submit = picky  # type: ignore[method-assign, assignment]
    turns = [{"role": "user", "content": f"turn {i}"} for i in range(5)]
    items = [{"role": "system", "content": "rule"}, *turns]
    assert (await post(app, PATH, ask(items))).status == 400
    await respond(app, items, truncation="auto")
    assert engine.submitted[-1][0] == "system:rule;user:turn 3;user:turn 4;"
    assert (await post(app, PATH, ask("x" * 50, truncation="auto"))).status == 400


# --- conversations ---


async def test_a_conversation_gathers_its_turns_and_can_be_added_to_and_changed(
    open_app: OpenApp, kept_in: str
) -> None:
    app, engine = await open_app(response_store=kept_in)
    url = "/v1/conversations/" + (talk := await conversation(app, "one"))
    added = await whole(await post(app, url + "/items", {"items": [{"role": "assistant", "content": "two"}]}))
    ResponseItemList.model_validate(added)
    body = await respond(app, "three", conversation={"id": talk}, instructions="Be brief.")
    assert body["conversation"] == {"id": talk}
    assert engine.submitted[-1][0] == "system:Be brief.;user:one;assistant:two;user:three;"
    listed = (await whole(await get(app, url + "/items")))["data"]
    assert [item["content"][0]["text"] for item in listed] == ["Hi.", "three", "two", "one"]
    single = f"{url}/items/{listed[1]['id']}"
    assert await whole(await get(app, single)) == listed[1]
    assert (await whole(await delete(app, single)))["id"] == talk
    assert (await get(app, single)).status == (await delete(app, single)).status == 404
    await respond(app, "four", conversation=talk)
    assert engine.submitted[-1][0] == "user:one;assistant:two;assistant:Hi.;user:four;"
    changed = await whole(await post(app, url, {"metadata": {"x": "y"}}))
    assert (changed["object"], changed["metadata"]) == ("conversation", {"x": "y"})
    missing = await post(app, url, {})
    assert (missing.status, (await whole(missing))["error"]["param"]) == (400, "metadata")
    assert await whole(await get(app, url)) == changed
    assert (await whole(await post(app, url, {"metadata": None})))["metadata"] == {}
    assert (await whole(await delete(app, url)))["deleted"] is True
    for path in (url, url + "/items"):
        assert (await get(app, path)).status == 404
    assert (await delete(app, url)).status == (await post(app, url, {"metadata": {}})).status == 404
    assert (await post(app, PATH, ask("x", conversation=talk))).status == 404


# --- bounds ---


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def body_of(number: int, clock: Clock, size: int = 0) -> Json:
    said = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": "x" * size}
    return {"id": f"resp_{number}", "created_at": clock.now, "status": "completed", "output": [said]}


async def kept(store: Store, count: int) -> list[int]:
    found = []
    for number in range(count):
        try:
            await store.get(f"resp_{number}")
            found.append(number)
        except NotFound:
            pass
    return found


@pytest.fixture
async def open_store(kept_in: str) -> AsyncIterator[Callable[..., tuple[Store, Clock]]]:
    made: list[Store] = []

    def opened(running: Callable[[], float] | None = None, **options: Any) -> tuple[Store, Clock]:
        clock = Clock()
        made.append(Store(Config(response_store=kept_in, **options), clock, running or clock))
        return made[-1], clock

    yield opened
    for store in made:
        await store.close()


async def test_a_name_of_an_item_reaches_no_other_clients_item(open_app: OpenApp, kept_in: str) -> None:
    app, engine = await open_app(response_store=kept_in)
    reference = {"type": "item_reference", "id": "msg_1"}

    def named(text: str) -> list[Any]:
        return [{"type": "message", "id": "msg_1", "role": "user", "content": text}]

    mine = await respond(app, named("mine"))
    answer = {"id": mine["output"][0]["id"]}  # the server's own id, which is a reference without its type
    await respond(app, [{"role": "user", "content": "a"}, answer, {"role": "user", "content": "b"}])
    assert engine.submitted[-1][0] == "user:a;assistant:Hi.;user:b;"
    secret = await respond(app, named("secret"))
    assert "msg_1" in (await refused(app, [reference], 404))["message"]
    await respond(app, [reference], previous_response_id=mine["id"])
    assert engine.submitted[-1][0].endswith("user:mine;")
    await respond(app, [reference], previous_response_id=secret["id"])
    assert engine.submitted[-1][0].endswith("user:secret;")
    conversation = await whole(await post(app, "/v1/conversations", {"items": named("talk")}))
    assert (await post(app, "/v1/conversations", {"items": [reference]})).status == 404
    added = await post(app, f"/v1/conversations/{conversation['id']}/items", {"items": [reference]})
    assert "talk" in str(await whole(added))
    await respond(app, [reference], conversation=conversation["id"])
    assert engine.submitted[-1][0].endswith("user:talk;")


async def test_what_is_too_old_or_too_much_is_forgotten(open_store: Callable[..., tuple[Store, Clock]]) -> None:
    store, clock = open_store(response_store_max_age_s=100)
    for number in range(4):
        await store.finish(body_of(number, clock), Context())
        clock.now += 40
    assert await kept(store, 4) == [2, 3]
    clock.now += 101
    assert await kept(store, 4) == []
    with pytest.raises(NotFound):
        await store.context(None, None, [{"type": "item_reference", "id": "msg_3"}])
    store, clock = open_store(response_store_max_count=3)
    for number in range(10, 15):
        await store.finish(body_of(number, clock), Context())
        clock.now += 1
    assert await kept(store, 15) == [12, 13, 14]


async def test_nothing_is_forgotten_because_the_clock_jumps(open_store: Callable[..., tuple[Store, Clock]]) -> None:
    running = Clock()
    store, clock = open_store(running=running, response_store_max_age_s=100)
    await store.finish(body_of(0, clock), Context())
    clock.now += 1_000_000
    await store.finish(body_of(1, clock), Context())
    assert await kept(store, 2) == [0, 1]
    running.now += 101
    clock.now += 101
    assert await kept(store, 2) == [1]
    clock.now -= 2_000_000
    await store.finish(body_of(2, clock), Context())
    assert await kept(store, 3) == [1, 2]


async def test_what_is_too_big_is_forgotten_oldest_first(open_store: Callable[..., tuple[Store, Clock]]) -> None:
    store, clock = open_store(response_store_max_mb=1)
    for number in range(6):
        await store.finish(body_of(number, clock, size=100_000), Context())
        clock.now += 1
    found = await kept(store, 6)
    assert found == [1, 2, 3, 4, 5], "each once as an item, once in its response: 200 KB"
    await store.finish(body_of(6, clock, size=3_000_000), Context())
    assert await kept(store, 7) == [6], "the newest stays, however big"


async def test_a_conversation_does_not_grow_beyond_the_store(open_store: Callable[..., tuple[Store, Clock]]) -> None:
    store, clock = open_store(response_store_max_mb=1)
    items: list[Json] = read_items([{"role": "user", "content": "x" * 400_000}], "items")
    await store.create_conversation({"id": "conv_1", "metadata": {}}, items)
    await store.add_conversation_items("conv_1", items)
    await store.finish(body_of(0, clock), Context())
    with pytest.raises(StoreFailure, match="larger than the response store, which may have 1 MB") as caught:
        await store.add_conversation_items("conv_1", items)
    assert (caught.value.status, caught.value.code) == (507, "storage_full")
    query = {"order": "asc", "after": None, "limit": 100}
    assert len((await store.items(CONVERSATION, "conv_1", query))[0]) == 2
    assert await kept(store, 1) == [0], "what was deleted to make room is there again"
    context = await store.context(None, "conv_1", items)
    with pytest.raises(StoreFailure, match="larger than"):
        await store.finish(body_of(1, clock), context)
    with pytest.raises(StoreFailure, match="larger than"):
        await store.start(body_of(2, clock), context, ())
    assert await kept(store, 3) == [0]


async def test_a_turn_that_goes_while_the_next_one_is_generated_is_stored_again(open_app: OpenApp) -> None:
    app, engine = await open_app()
    first = await respond(app, "one")
    response = await post(app, PATH, ask("two", previous_response_id=first["id"], stream=True))
    assert (await delete(app, f"{PATH}/{first['id']}")).status == 200
    second = parse_sse(b"".join([part async for part in parts(response)]))[-1]["response"]
    await respond(app, "three", previous_response_id=second["id"])
    assert engine.submitted[-1][0] == "user:one;assistant:Hi.;user:two;assistant:Hi.;user:three;"


# --- files ---


def test_a_store_without_a_directory_is_a_wrong_option() -> None:
    with pytest.raises(WrongOptions, match="--response_store none/x: the directory"):
        parse(["serve", "org/none", "--response_store", "none/x"], {})


async def test_a_file_that_cannot_be_made_stops_the_start_without_its_path_in_answers(
    open_app: OpenApp, tmp_path: Path
) -> None:
    folder = tmp_path / "there for a while"
    folder.mkdir()
    app, _ = await open_app(response_store=str(folder / "store.sqlite"))
    folder.rmdir()
    with pytest.raises(StartError, match="No such file"):
        await app.open()
    response = await get(app, f"{PATH}/resp_1")
    assert response.status == 500
    assert str(tmp_path) not in str(await whole(response))


async def test_an_answer_that_cannot_be_kept_says_so_and_is_not_lost(open_app: OpenApp) -> None:
    app, _ = await open_app()

    async def full(*args: Any, **fields: Any) -> None:
        raise StoreFailure("the response store failed: disk full")

    app.services.get(ResponseService).store.finish = full  # type: ignore[method-assign]
    body = await respond(app)
    assert (body["status"], body["store"]) == ("completed", False)
    events = parse_sse(b"".join([p async for p in parts(await post(app, PATH, ask("x", stream=True)))]))
    assert (events[-1]["type"], events[-1]["response"]["store"]) == ("response.completed", False)


# --- the database ---


async def test_work_that_fails_takes_nothing_else_with_it() -> None:
    ran: list[int] = []

    def make(connection: Connection) -> None:
        connection.execute("CREATE TABLE t (x INTEGER PRIMARY KEY)")

    database = Database(Sqlite, "", make, lambda c: ran.append(1) or [])

    def insert(*values: int) -> Callable[[Connection], int]:
        def work(connection: Connection) -> int:
            for value in values:
                connection.execute("INSERT INTO t VALUES (?)", (value,))
            return len(values)

        return work

    await database.open("memory")
    before = len(ran)
    results = await asyncio.gather(
        *(database.run(insert(*values)) for values in ((1, 2), (3, 3), (4,))), return_exceptions=True
    )
    assert results[0] == 2
    assert isinstance(results[1], StoreFailure)
    assert results[2] == 1
    assert len(ran) - before <= 3
    rows = await database.run(lambda c: c.execute("SELECT x FROM t").fetchall())
    assert rows == [(1,), (2,), (4,)]
    await database.close()
    await database.close()
    with pytest.raises(StoreFailure):
        await database.run(lambda c: None)


async def test_a_transaction_that_fails_is_an_error_for_all_and_the_next_one_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = [True]

    def before(connection: Connection) -> list[Callable[[], object]]:
        if broken[0]:
            raise sqlite3.OperationalError("database or disk is full")
        return []

    database = Database(Sqlite, "", lambda c: None, before)
    results = await asyncio.gather(*(database.run(lambda c: 1) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, StoreFailure) and "disk is full" in result.message for result in results)
    assert "disk is full" in caplog.text
    assert "Traceback" not in caplog.text  # even though it fails at each response while the disk is full
    broken[0] = False
    assert await database.run(lambda c: 1) == 1
    await database.close()


@pytest.mark.slow
async def test_a_waiter_that_leaves_does_not_stop_the_work_and_its_error_is_not_reported() -> None:
    database = Database(Sqlite, "", lambda c: None, lambda c: [])
    await database.open("memory")
    done: list[int] = []
    problems: list[Json] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))

    left = threading.Event()

    def work(connection: Connection) -> None:
        left.wait(300)
        done.append(1)
        raise NotFound("there is no such response")

    task = asyncio.ensure_future(database.run(work))
    await asyncio.sleep(0)
    await cancel(task)
    left.set()
    await database.run(lambda c: None)
    await database.close()
    del task
    gc.collect()
    assert (done, problems) == ([1], [])
