"""Two servers on one store: what one keeps the other reads, continues, cancels, deletes; one or the store may die."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import NotFound, StartError, StoreUnavailable, install_command
from lean_ovms.features.responses import database, postgres, service, sqlite, store
from lean_ovms.features.responses.service import ResponseService
from lean_ovms.types import Request
from tests import databases
from tests.api.conftest import MakeApp, get, parts, post, whole
from tests.fakes import say
from tests.features.responses.rules import Json, check_response, parse_sse
from tests.features.responses.test_background import Slow

PATH = "/v1/responses"

Open = Callable[..., Awaitable[Slow]]


@pytest.fixture
def opened(make_app: MakeApp, kept_in: str, monkeypatch: pytest.MonkeyPatch) -> Open:
    """A server on the one store. Servers look often, so that tests are fast."""
    monkeypatch.setattr(service, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(service, "HEARTBEAT_INTERVAL_S", 0.02)

    async def make(script: Any = None, **options: Any) -> Slow:
        app, engine = await make_app([] if script is None else script, **{"response_store": kept_in, **options})
        await app.services.get(ResponseService).open()
        return Slow(app, engine)

    return make


async def ask(app: App, text: str, **fields: Any) -> Json:
    response = await post(app, PATH, {"model": "m", "input": text, **fields})
    assert response.status == 200, response.body
    body: Json = await whole(response)
    return body


async def test_many_servers_may_open_a_new_store_at_once(kept_in: str) -> None:
    stores = [store.Store(Config(response_store=kept_in)) for _ in range(6)]
    await asyncio.gather(*(made.open() for made in stores))
    await asyncio.gather(*(made.close() for made in stores))


async def test_an_id_with_a_nul_is_not_found(opened: Open) -> None:
    server = await opened(lambda *_: say("Hi."))
    assert (await get(server.app, f"{PATH}/resp_%00")).status == 404
    for fields in ({"previous_response_id": "resp_\0"}, {"input": [{"type": "item_reference", "id": "msg_\0"}]}):
        assert (await post(server.app, PATH, {"model": "m", "input": "x", **fields})).status in (400, 404)


async def test_what_one_server_keeps_the_other_reads_continues_and_deletes(opened: Open) -> None:
    a, b = await opened(lambda *_: say("A.")), await opened(lambda *_: say("B."))
    first = await ask(a.app, "one")
    assert await b.get(first["id"]) == first
    second = await ask(b.app, "two", previous_response_id=first["id"])
    await ask(a.app, "three", previous_response_id=second["id"])
    assert a.engine.submitted[-1][0] == "user:one;assistant:A.;user:two;assistant:B.;user:three;"
    listed = await whole(await get(a.app, f"{PATH}/{second['id']}/input_items"))
    assert len(listed["data"]) == 3
    assert (await b.app.handle(Request("DELETE", f"{PATH}/{first['id']}"))).status == 200
    for app in (a.app, b.app):
        assert (await get(app, f"{PATH}/{first['id']}")).status == 404


async def test_both_add_to_one_conversation(opened: Open) -> None:
    a, b = await opened(lambda *_: say("A.")), await opened(lambda *_: say("B."))
    conversation = (await whole(await post(a.app, "/v1/conversations", {"metadata": {"k": "v"}})))["id"]
    await ask(a.app, "one", conversation=conversation)
    await ask(b.app, "two", conversation=conversation)
    assert b.engine.submitted[-1][0] == "user:one;assistant:A.;user:two;"
    await whole(await post(b.app, f"/v1/conversations/{conversation}", {"metadata": {"k": "w"}}))
    assert (await whole(await get(a.app, f"/v1/conversations/{conversation}")))["metadata"] == {"k": "w"}
    # At once, from both: nothing is lost, nothing takes another's place.
    texts = [f"{server}{number}" for number in range(5) for server in "ab"]
    servers = {"a": a.app, "b": b.app}
    items = [{"items": [{"role": "user", "content": text}]} for text in texts]
    url = f"/v1/conversations/{conversation}/items"
    await asyncio.gather(*(post(servers[text[0]], url, item) for text, item in zip(texts, items, strict=True)))
    listed = (await whole(await get(a.app, url)))["data"]
    assert sorted(item["content"][0]["text"] for item in listed) == sorted(["one", "A.", "two", "B.", *texts])
    assert (await b.app.handle(Request("DELETE", f"/v1/conversations/{conversation}"))).status == 200
    assert (await get(a.app, url)).status == 404


async def test_a_background_response_is_seen_and_cancelled_from_the_other_server(opened: Open) -> None:
    a, b = await opened(), await opened()
    made = await a.start()
    await a.say("Hel")
    seen = await b.get(made["id"])
    assert (seen["status"], seen["output"]) == ("in_progress", [])
    cancelled = await b.cancel(made["id"])
    check_response(cancelled)
    assert (cancelled["status"], cancelled["output"][0]["content"][0]["text"]) == ("cancelled", "Hel")
    assert await a.get(made["id"]) == cancelled
    assert not a.engine.mail.busy


async def test_its_stream_comes_from_the_other_server_when_it_is_over(opened: Open) -> None:
    a, b = await opened(), await opened(sse_ping_s=0.01)
    made = await a.start(stream=True)
    response = await b.app.handle(Request("GET", f"{PATH}/{made['id']}", query="stream=true&starting_after=1"))
    found = parts(response)
    assert await found.__anext__() == b": ping\n\n"
    await a.say("Hello", "stop")
    await a.until_over(made["id"])
    said = b"".join([part async for part in found]).replace(b": ping\n\n", b"")
    assert parse_sse(said) == (await a.stream(made["id"]))[2:]


async def test_a_response_without_a_stream_has_none_on_the_other_server(opened: Open) -> None:
    a, b = await opened(), await opened()
    made = await a.start()
    response = await b.app.handle(Request("GET", f"{PATH}/{made['id']}", query="stream=true"))
    assert (response.status, "stream true" in str(await whole(response))) == (400, True)


async def test_deleting_it_on_the_other_server_stops_it(opened: Open) -> None:
    a, b = await opened(), await opened()
    made = await a.start(stream=True)
    response = await b.app.handle(Request("GET", f"{PATH}/{made['id']}", query="stream=true&starting_after=3"))
    waiting = asyncio.ensure_future(_all(response))
    await a.say("Hel")
    assert (await b.app.handle(Request("DELETE", f"{PATH}/{made['id']}"))).status == 200
    while a.engine.mail.busy:
        await asyncio.sleep(0.01)
    [error] = parse_sse(await waiting)
    assert (error["type"], error["sequence_number"]) == ("error", 4)
    for server in (a, b):
        while (await get(server.app, f"{PATH}/{made['id']}")).status != 404:
            await asyncio.sleep(0.01)


async def _all(response: Any) -> bytes:
    return b"".join([part async for part in parts(response)])


async def hours_later(made: store.Store, response: str) -> None:
    """The response had its last heartbeat long ago, and the store was there all the while; all others had theirs."""
    aged = "UPDATE run SET seen = seen - 9999 WHERE response = ?"
    await made._db.run(lambda connection: connection.execute(aged, (response,)), write=True)
    made._connected -= 9999


@pytest.mark.slow
async def test_what_a_dead_server_was_making_has_failed_for_the_others(
    opened: Open,
) -> None:
    a, b = await opened(), await opened()
    dead, alive = await a.start(), await b.start()
    run = a.app.services.get(ResponseService)._background[dead["id"]]
    a.app.services.get(ResponseService)._monitor_task.cancel()  # type: ignore[union-attr]
    run.task.cancel()  # as if the process were gone: nothing is written any more
    await a.app.services.get(ResponseService).store.close()
    await hours_later(b.app.services.get(ResponseService).store, dead["id"])
    cancelling = asyncio.ensure_future(post(b.app, f"{PATH}/{dead['id']}/cancel", b""))
    body = await b.until_over(dead["id"])
    check_response(body)
    assert (body["status"], "stopped before" in body["error"]["message"]) == ("failed", True)
    assert await whole(await cancelling) == body
    c = await opened()
    assert await c.get(dead["id"]) == body
    assert (await c.get(alive["id"]))["status"] == "in_progress", "its server is there"
    await b.say("Hello", "stop")
    assert (await c.until_over(alive["id"]))["status"] == "completed"


async def test_a_response_that_was_given_up_stays_failed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server was only slow: what the others were told does not change any more."""
    a, b = await opened(), await opened()
    made = await a.start()
    kept = a.app.services.get(ResponseService).store
    looked = asyncio.Event()
    look = kept.poll_stops

    async def looking(running: Iterable[str]) -> list[str]:
        found = await look(running)
        looked.set()
        return found

    monkeypatch.setattr(kept, "poll_stops", looking)
    await looked.wait()
    monkeypatch.setattr(service, "POLL_INTERVAL_S", 3600)
    looked.clear()
    await looked.wait()  # the server does not look any more
    monkeypatch.setattr(store, "LEASE_S", 0.0)
    failed = await b.until_over(made["id"])
    assert failed["status"] == "failed"
    await a.say("Hello", "stop")
    await a.app.services.get(ResponseService).drain(30)
    assert await b.get(made["id"]) == failed


async def test_a_clock_that_is_set_fails_no_response_of_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the sleep of a machine: for all servers the last heartbeat of every other is old."""
    config = Config(response_store=str(tmp_path / "store"))
    mine, other = store.Store(config), store.Store(config)
    body = {"id": "resp_1", "status": "in_progress", "background": True, "output": [], "created_at": time.time()}
    await mine.start(body, store.Context(), b"")
    await other.open()
    real = time.time
    monkeypatch.setattr(sqlite.time, "time", lambda: real() + 3600)
    other._connected -= 9999
    assert (await other.get("resp_1"))[1], "still running"
    other._connected -= 9999
    await mine.heartbeat()
    assert (await other.get("resp_1"))[1]
    await hours_later(other, "resp_1")
    assert (await other.get("resp_1"))[0]["status"] == "failed"
    await mine.close()
    await other.close()


# --- a database that goes away ---


@pytest.fixture(scope="module")
def stoppable() -> Iterator[databases.Server]:
    with databases.running() as server:
        if server is None:
            pytest.skip("no PostgreSQL server")
        yield server


@pytest.fixture
def own_postgres(stoppable: databases.Server) -> Iterator[databases.Server]:
    """A server that a test may stop; it runs when the test begins."""
    if not stoppable.running:
        stoppable.start()
    yield stoppable
    if stoppable.running:
        stoppable.signal(signal.SIGCONT)


@pytest.mark.slow
async def test_a_database_that_goes_away_is_a_503_until_it_is_back(
    make_app: MakeApp, own_postgres: databases.Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(service, "HEARTBEAT_INTERVAL_S", 0.02)
    url = own_postgres.url()
    app, engine = await make_app([], response_store=url)
    slow = Slow(app, engine)
    kept = await slow.start()
    await slow.say("Kept", "stop")
    await slow.until_over(kept["id"])
    await app.services.get(ResponseService).drain(30)
    running = await slow.start()
    own_postgres.stop(signal.SIGKILL)
    for _ in range(2):
        response = await get(app, f"{PATH}/{kept['id']}")
        error = (await whole(response))["error"]
        assert (response.status, error["code"]) == (503, "store_unavailable")
        assert dict(response.headers)["Retry-After"]
    assert (await post(app, PATH, {"model": "m", "input": "x", "background": True})).status == 503
    engine.script = lambda *_: say("Hi.")
    assert (await ask(app, "not kept"))["store"] is False, "an answer is not lost with the database"
    assert (await slow.get(running["id"]))["status"] == "queued"
    await slow.say("Hello", "stop")
    own_postgres.start()
    assert (await get(app, f"{PATH}/{kept['id']}")).status == 200
    while running["id"] in app.services.get(ResponseService)._background:
        await asyncio.sleep(0.01)
    assert (await slow.get(running["id"]))["status"] == "completed", "kept as soon as the database is back"
    own_postgres.stop()
    own_postgres.start()
    assert (await ask(app, "kept"))["store"] is True, "a restart between two requests is not noticed"
    for text in (caplog.text, repr(app.config), str(app.config.for_engine())):
        assert databases.PASSWORD not in text
        assert databases.PASSWORD.replace("%2F", "/") not in text


@pytest.mark.slow
async def test_a_database_that_hangs_holds_up_nobody(
    make_app: MakeApp, own_postgres: databases.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CALL_TIMEOUT_S", 2.0)
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", 2)
    app, _ = await make_app(lambda *_: say("Hi."), response_store=own_postgres.url())
    kept = await ask(app, "x")
    own_postgres.signal(signal.SIGSTOP)
    waiting = asyncio.ensure_future(get(app, f"{PATH}/{kept['id']}"))
    assert (await get(app, "/v1/models")).status == 200
    assert not waiting.done()
    assert (await waiting).status == 503
    own_postgres.signal(signal.SIGCONT)
    while (await get(app, f"{PATH}/{kept['id']}")).status != 200:
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_url_that_cannot_work_stops_the_start_and_keeps_its_password(
    make_app: MakeApp, postgres: databases.Server
) -> None:
    wrong = postgres.database("nowhere"), postgres.database("postgres").replace(databases.PASSWORD, "wrong-secret")
    invalid = "postgresql://lean:wrong-secret@host:port:1/x", "mysql://lean:wrong-secret@host/x"
    for url in (*wrong, *invalid):
        app, _ = await make_app([], response_store=url)
        with pytest.raises(StartError) as caught:
            await app.services.get(ResponseService).open()
        assert "--response_store" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert databases.PASSWORD not in str(caught.value)


async def test_without_psycopg_the_start_says_what_to_install(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    app, _ = await make_app([], response_store="postgresql://lean:secret@host/x")
    with pytest.raises(StartError, match=re.escape(install_command("postgres"))) as caught:
        await app.services.get(ResponseService).open()
    assert "secret" not in str(caught.value)


@pytest.mark.slow
async def test_a_write_that_was_given_up_is_not_done_later(
    own_postgres: databases.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited behind one that the database did not answer; its client was told of a failure."""
    made = store.Store(Config(response_store=own_postgres.url()))
    await made.open()
    monkeypatch.setattr(database, "CALL_TIMEOUT_S", 0.3)
    own_postgres.signal(signal.SIGSTOP)
    reading = asyncio.ensure_future(made.conversation("conv_1"))
    await asyncio.sleep(0.05)  # the thread is waiting for the database
    body = {"id": "conv_1", "object": "conversation", "created_at": 4e9, "metadata": {}}
    for result in await asyncio.gather(reading, made.create_conversation(body, []), return_exceptions=True):
        assert isinstance(result, StoreUnavailable)
    own_postgres.signal(signal.SIGCONT)
    monkeypatch.setattr(database, "CALL_TIMEOUT_S", 300)
    with pytest.raises(NotFound):
        await made.conversation("conv_1")
    await made.close()


# --- files ---


async def test_a_busy_file_is_a_503(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    path = str(tmp_path / "store.sqlite")
    app, _ = await make_app(lambda *_: say("Hi."), response_store=path)
    kept = await ask(app, "x")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert (await get(app, f"{PATH}/{kept['id']}")).status == 200, "reading goes on beside a writer"
    response = await app.handle(Request("DELETE", f"{PATH}/{kept['id']}"))
    assert (response.status, (await whole(response))["error"]["code"]) == (503, "store_unavailable")
    other.close()
    assert (await app.handle(Request("DELETE", f"{PATH}/{kept['id']}"))).status == 200


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (99, "a newer")])
async def test_a_file_of_another_version_stays_as_it_is(
    make_app: MakeApp, tmp_path: Path, version: int, age: str
) -> None:
    path = tmp_path / "store.sqlite"
    made = store.Store(Config(response_store=str(path)))
    await made.open()
    await made.close()
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {version}")
        file.commit()
    content = path.read_bytes()
    other = store.Store(Config(response_store=str(path)))
    with pytest.raises(StartError, match=f"written by {age} version"):
        await other.open()
    await other.close()
    assert path.read_bytes() == content
