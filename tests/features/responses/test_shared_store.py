"""Two servers with one store: one reads, continues and deletes what the other stored, even if a server or the store
dies."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import NotFound, StartError, install_command
from lean_ovms.features.responses import database, postgres, service, sqlite, store
from lean_ovms.features.responses.connection import StoreUnavailable
from lean_ovms.features.responses.service import ResponseService
from lean_ovms.types import Request
from lean_ovms.util.files import take_lock
from tests import databases
from tests.api.conftest import MakeApp, get, post, whole
from tests.fakes import say
from tests.features.responses.rules import PATH, ask, check_response, refused, respond
from tests.features.responses.test_background import Slow

Open = Callable[..., Awaitable[Slow]]


@pytest.fixture
def opened(make_app: MakeApp, kept_in: str) -> Open:
    """Returns a server with the common store."""

    async def make(script: Any = None, **options: Any) -> Slow:
        app, engine = await make_app([] if script is None else script, **{"response_store": kept_in, **options})
        await app.services.get(ResponseService).open()
        return Slow(app, engine)

    return make


async def test_many_servers_may_open_a_new_store_at_once(kept_in: str) -> None:
    stores = [store.Store(Config(response_store=kept_in)) for _ in range(6)]
    await asyncio.gather(*(made.open() for made in stores))
    await asyncio.gather(*(made.close() for made in stores))


async def test_an_id_with_a_nul_is_not_found(opened: Open) -> None:
    server = await opened(lambda *_: say("Hi."))
    assert (await get(server.app, f"{PATH}/resp_%00")).status == 404
    for fields in ({"previous_response_id": "resp_\0"}, {"input": [{"type": "item_reference", "id": "msg_\0"}]}):
        assert (await post(server.app, PATH, ask("x", **fields))).status in (400, 404)


async def test_what_one_server_keeps_the_other_reads_continues_and_deletes(opened: Open, kept_in: str) -> None:
    a, b = await opened(lambda *_: say("A.")), await opened(lambda *_: say("B."))
    first = await respond(a.app, "one")
    assert await b.get(first["id"]) == first
    second = await respond(b.app, "two", previous_response_id=first["id"])
    await respond(a.app, "three", previous_response_id=second["id"])
    assert a.engine.submitted[-1][0] == "user:one;assistant:A.;user:two;assistant:B.;user:three;"
    listed = await whole(await get(a.app, f"{PATH}/{second['id']}/input_items"))
    assert len(listed["data"]) == 3
    await a.app.close()
    a = await opened(lambda *_: say("A."))  # a restart loses nothing
    assert await a.get(second["id"]) == second
    assert postgres.is_url(kept_in) or Path(kept_in).stat().st_mode & 0o777 == 0o600
    assert (await b.app.handle(Request("DELETE", f"{PATH}/{first['id']}"))).status == 200
    for app in (a.app, b.app):
        assert (await get(app, f"{PATH}/{first['id']}")).status == 404


async def test_both_add_to_one_conversation(opened: Open) -> None:
    a, b = await opened(lambda *_: say("A.")), await opened(lambda *_: say("B."))
    conversation = (await whole(await post(a.app, "/v1/conversations", {"metadata": {"k": "v"}})))["id"]
    await respond(a.app, "one", conversation=conversation)
    await respond(b.app, "two", conversation=conversation)
    assert b.engine.submitted[-1][0] == "user:one;assistant:A.;user:two;"
    await whole(await post(b.app, f"/v1/conversations/{conversation}", {"metadata": {"k": "w"}}))
    assert (await whole(await get(a.app, f"/v1/conversations/{conversation}")))["metadata"] == {"k": "w"}
    # Written at once by both servers: nothing is lost or overwritten.
    texts = [f"{server}{number}" for number in range(5) for server in "ab"]
    servers = {"a": a.app, "b": b.app}
    items = [{"items": [{"role": "user", "content": text}]} for text in texts]
    url = f"/v1/conversations/{conversation}/items"
    await asyncio.gather(*(post(servers[text[0]], url, item) for text, item in zip(texts, items, strict=True)))
    listed = (await whole(await get(a.app, url)))["data"]
    assert sorted(item["content"][0]["text"] for item in listed) == sorted(["one", "A.", "two", "B.", *texts])
    assert (await b.app.handle(Request("DELETE", f"/v1/conversations/{conversation}"))).status == 200
    assert (await get(a.app, url)).status == 404


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_background_response_belongs_to_the_server_that_runs_it(opened: Open, streamed: bool) -> None:
    """The other server can read it, and says which one can do the rest. Once it has ended, there is no difference."""
    a, b = await opened(), await opened()
    made = await a.start(stream=streamed)
    await a.say("Hel")
    seen = await b.get(made["id"])
    assert (seen["status"], seen["output"]) == ("in_progress", [])
    path = f"{PATH}/{made['id']}"
    for response in (
        await post(b.app, f"{path}/cancel", b""),
        await b.app.handle(Request("GET", path, query="stream=true&starting_after=1")),
    ):
        error = (await whole(response))["error"]
        assert (response.status, error["code"], made["id"] in error["message"]) == (409, "other_server", True)
    assert "not finished yet" in (await refused(b.app, previous_response_id=made["id"]))["message"]
    await a.say("lo", "stop")
    over = await a.until_over(made["id"])
    await a.app.services.get(ResponseService).drain(30)
    assert await b.get(made["id"]) == await b.cancel(made["id"]) == over
    if streamed:
        assert await b.stream(made["id"]) == await a.stream(made["id"])


async def test_one_that_is_deleted_on_the_other_server_stays_deleted(opened: Open) -> None:
    a, b = await opened(), await opened()
    made = await a.start(stream=True)
    assert (await b.app.handle(Request("DELETE", f"{PATH}/{made['id']}"))).status == 200
    await a.say("Hello", "stop")
    await a.app.services.get(ResponseService).drain(30)
    for server in (a, b):
        assert (await get(server.app, f"{PATH}/{made['id']}")).status == 404


async def test_what_a_dead_server_was_making_has_failed_for_the_others(opened: Open) -> None:
    a, b = await opened(), await opened()
    dead, alive = await a.start(stream=True), await b.start()
    run = a.app.services.get(ResponseService)._background[dead["id"]]
    run.task.cancel()  # as if the process had ended: nothing more is written
    await a.app.services.get(ResponseService).store.close()
    for server in (b, await opened()):  # one that notices its end, and one that starts afterwards
        body = await server.get(dead["id"])
        check_response(body)
        assert (body["status"], "stopped before" in body["error"]["message"]) == ("failed", True)
        assert await server.cancel(dead["id"]) == body
        response = await server.app.handle(Request("GET", f"{PATH}/{dead['id']}", query="stream=true"))
        assert (response.status, "its stream was lost" in str(await whole(response))) == (400, True)
        assert "failed and cannot" in (await refused(server.app, previous_response_id=dead["id"]))["message"]
        assert (await server.get(alive["id"]))["status"] in ("queued", "in_progress"), "its server is there"
    await b.say("Hello", "stop")
    assert (await b.until_over(alive["id"]))["status"] == "completed"


async def test_what_a_later_server_has_given_up_stays_failed(opened: Open) -> None:
    """The server had lost its lock but was still running. What others were told no longer changes."""
    a = await opened()
    made = await a.start()
    kept = a.app.services.get(ResponseService).store
    await kept._db.run(lambda db: db.execute("UPDATE run SET server = '1'"))
    b = await opened()
    failed = await b.get(made["id"])
    assert failed["status"] == "failed"
    await a.say("Hello", "stop")
    await a.app.services.get(ResponseService).drain(30)
    assert await b.get(made["id"]) == failed


async def test_locks_of_servers_that_were_killed_are_cleared_away(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    made, others = sqlite.Sqlite(path), sqlite.Sqlite(path)
    made.hold("1")
    assert (others.holds("1"), others.holds("2")) == (True, False)
    for number in (2, 3):
        (tmp_path / f"store-server-{number}").touch()  # its process has ended, and so released the lock
    assert not others.holds("2")
    assert not (tmp_path / "store-server-2").exists()
    others.hold("4")
    assert not (tmp_path / "store-server-3").exists()
    made.close()
    assert not others.holds("1")
    others.close()
    assert {file.name for file in tmp_path.iterdir()} == {"store"}


async def test_a_server_whose_new_lock_was_taken_for_a_leftover_makes_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making of the file and its lock, another server that starts looks at it, and then removes it."""
    path = str(tmp_path / "store")
    made, others = sqlite.Sqlite(path), sqlite.Sqlite(path)
    file, lock = tmp_path / "store-server-1", contextlib.ExitStack()
    looks: list[bool] = []

    def looked_at(descriptor: int, *, shared: bool = False) -> bool:
        if not looks:
            leftover = lock.enter_context(file.open())
            looks.append(take_lock(leftover.fileno(), shared=True))
        elif len(looks) == 1:
            file.unlink()
            lock.close()
            looks.append(True)
        return take_lock(descriptor, shared=shared)

    monkeypatch.setattr(sqlite, "take_lock", looked_at)
    made.hold("1")
    monkeypatch.undo()
    assert looks == [True, True]
    assert others.holds("1")
    made.close()
    others.close()


# --- a database that goes away ---


@pytest.fixture
def own_postgres(postgres: databases.Server) -> Iterator[databases.Server]:
    """The PostgreSQL server, which the test may stop; it runs again afterwards."""
    yield postgres
    if postgres.running:
        postgres.signal(signal.SIGCONT)
    else:
        postgres.start()


@pytest.mark.slow
async def test_a_database_that_goes_away_is_a_503_until_it_is_back(
    make_app: MakeApp, own_postgres: databases.Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "RETRY_S", 0.02)
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
    assert (await post(app, PATH, ask("x", background=True))).status == 503
    engine.script = lambda *_: say("Hi.")
    assert (await respond(app, "not kept"))["store"] is False, "an answer is not lost with the database"
    assert (await slow.get(running["id"]))["status"] == "queued"
    await slow.say("Hello", "stop")
    own_postgres.start()
    assert (await get(app, f"{PATH}/{kept['id']}")).status == 200
    while running["id"] in app.services.get(ResponseService)._background:
        await asyncio.sleep(0.01)
    assert (await slow.get(running["id"]))["status"] == "completed", "kept as soon as the database is back"
    own_postgres.stop()
    own_postgres.start()
    assert (await respond(app, "kept"))["store"] is True, "a restart between two requests is not noticed"
    for text in (caplog.text, repr(app.config), str(app.config.for_engine(["responses"]))):
        assert databases.PASSWORD not in text
        assert databases.PASSWORD.replace("%2F", "/") not in text


@pytest.mark.slow
async def test_a_database_that_hangs_holds_up_nobody(
    make_app: MakeApp, own_postgres: databases.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CALL_TIMEOUT_S", 2.0)
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", 2)
    app, _ = await make_app(lambda *_: say("Hi."), response_store=own_postgres.url())
    kept = await respond(app, "x")
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
    """It waited for a write that the database did not answer, and its client was told of a failure."""
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
    kept = await respond(app, "x")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert (await get(app, f"{PATH}/{kept['id']}")).status == 200, "reading goes on beside a writer"
    response = await app.handle(Request("DELETE", f"{PATH}/{kept['id']}"))
    assert (response.status, (await whole(response))["error"]["code"]) == (503, "store_unavailable")
    other.close()
    assert (await app.handle(Request("DELETE", f"{PATH}/{kept['id']}"))).status == 200


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (99, "a newer")])
async def test_a_file_of_another_version_stays_as_it_is(tmp_path: Path, version: int, age: str) -> None:
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
