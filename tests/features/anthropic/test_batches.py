"""Batches of messages. They share their implementation with OpenAI's batches, which tests/features/batches tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.errors import StoreFailure
from lean_ovms.features.batches.service import BatchService
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, parts, whole
from tests.fakes import FakeEngine, say
from tests.features.anthropic.conftest import HELLO, client

PATH = "/v1/messages/batches"
DEADLINE_S = 60.0


async def started(make_app: MakeApp, tmp_path: Path, script: Any, **options: Any) -> tuple[App, FakeEngine]:
    app, engine = await make_app(script, files_path=str(tmp_path / "files"), **options)
    await app.open()
    return app, engine


def asking(*names: str, **params: Any) -> list[Any]:
    return [{"custom_id": name, "params": {**HELLO, **params}} for name in names]


async def call(app: App, method: str, path: str = "", status: int = 200, body: Any = None, peer: str = "") -> Any:
    path, _, query = path.partition("?")
    data = b"" if body is None else orjson.dumps(body)
    response = await app.handle(Request(method, PATH + path, query, body=data, peer=peer))
    found = await whole(response)
    assert response.status == status, found
    return found


async def finished(app: App, batch: Any) -> Any:
    task = app.services.get(BatchService)._runs.get(batch["id"])
    if task is not None:
        await asyncio.wait_for(asyncio.shield(task), DEADLINE_S)
    return await call(app, "GET", f"/{batch['id']}")


async def results(app: App, batch: Any) -> dict[str, Any]:
    response = await app.handle(Request("GET", f"{PATH}/{batch['id']}/results"))
    assert response.status == 200
    rows = [orjson.loads(row) for row in b"".join([part async for part in parts(response)]).splitlines()]
    found = {row["custom_id"]: row["result"] for row in rows}
    assert len(found) == len(rows)
    return found


async def test_each_request_has_one_result(make_app: MakeApp, tmp_path: Path) -> None:
    app, _ = await started(make_app, tmp_path, say("hello"))
    requests = [*asking("a", "b"), *asking("hot", temperature=99), *asking("stream", stream=True)]
    batch = await call(app, "POST", body={"requests": requests})
    assert batch["processing_status"] == "in_progress"
    assert batch["request_counts"]["processing"] == 4
    assert batch["results_url"] is batch["ended_at"] is None
    done = await finished(app, batch)
    assert done["processing_status"] == "ended"
    counts = {"processing": 0, "succeeded": 2, "errored": 2, "canceled": 0, "expired": 0}
    assert done["request_counts"] == counts
    found = await results(app, batch)
    assert {name: result["type"] for name, result in found.items()} == {
        "a": "succeeded", "b": "succeeded", "hot": "errored", "stream": "errored"
    }  # fmt: skip
    assert found["a"]["message"]["content"][0]["text"] == "hello"
    for name, word in (("hot", "temperature"), ("stream", "stream")):
        assert found[name]["error"]["type"] == "error"
        assert found[name]["error"]["error"]["type"] == "invalid_request_error"
        assert word in found[name]["error"]["error"]["message"]


WRONG: list[tuple[Any, str]] = [
    (None, "requests"),
    ([], "requests"),
    ([*asking("a"), 7], "requests[1]"),
    ([*asking("a"), *asking("a")], "requests[1]"),
    (asking(""), "requests[0]"),
    ([{"custom_id": "a", "params": {"messages": []}}], "requests[0]"),
    (asking("a", "b", "c"), "requests"),
]


async def test_wrong_requests_are_refused_at_once(make_app: MakeApp, tmp_path: Path) -> None:
    app, _ = await started(make_app, tmp_path, say("hello"), max_batch_lines=2)
    for requests, place in WRONG:
        error = (await call(app, "POST", status=400, body={"requests": requests}))["error"]
        assert error["type"] == "invalid_request_error"
        assert place in error["message"]
    assert list((tmp_path / "files").iterdir()) == []
    app, _ = await make_app(say("hello"))  # without files there are no batches
    assert (await call(app, "GET", status=501))["type"] == "error"


async def test_a_canceled_batch_goes_on_nowhere(make_app: MakeApp, tmp_path: Path) -> None:
    app, _ = await started(make_app, tmp_path, [[(0, "hello", "stop")]], batch_concurrency=1)
    app.services.get(BatchService)._handle = _never
    batch = await call(app, "POST", body={"requests": asking("a", "b")})
    early = await call(app, "GET", f"/{batch['id']}/results", status=400)
    assert "ended" in early["error"]["message"]
    await call(app, "DELETE", f"/{batch['id']}", status=400)
    assert (await call(app, "POST", f"/{batch['id']}/cancel"))["cancel_initiated_at"]
    done = await finished(app, batch)
    assert done["request_counts"]["canceled"] == 2
    assert {result["type"] for result in (await results(app, batch)).values()} == {"canceled"}
    again = await call(app, "POST", f"/{batch['id']}/cancel", status=409)
    assert again["type"] == "error"


async def _never(request: Request) -> Any:
    await asyncio.Event().wait()


async def test_requests_of_a_failed_batch_are_errored(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = await started(make_app, tmp_path, say("hello"), batch_concurrency=1)
    storage, left = app.services.get(BatchService).storage, [None]

    def require_room(size: int) -> None:
        if not left:
            raise StoreFailure("full", code="storage_full")
        left.pop()

    monkeypatch.setattr(storage, "require_room", lambda size: None)
    batch = await call(app, "POST", body={"requests": asking("a", "b", "c")})
    monkeypatch.setattr(storage, "require_room", require_room)
    done = await finished(app, batch)
    assert done["processing_status"] == "ended"
    assert (done["request_counts"]["succeeded"], done["request_counts"]["errored"]) == (1, 2)
    found = await results(app, batch)
    assert [found[name]["type"] for name in "abc"] == ["succeeded", "errored", "errored"]
    assert found["c"]["error"]["error"]["type"] == "api_error"


async def test_lists_are_the_clients_own(make_app: MakeApp, tmp_path: Path) -> None:
    app, _ = await started(make_app, tmp_path, say("hello"))
    made = [await call(app, "POST", body={"requests": asking("a")}, peer="10.0.0.9:1") for _ in range(3)]
    ids = sorted(batch["id"] for batch in made)
    for batch in made:
        await finished(app, batch)
    assert (await call(app, "GET"))["data"] == []
    listed = await call(app, "GET", peer="10.0.0.9:2")
    assert sorted(batch["id"] for batch in listed["data"]) == ids
    first = await call(app, "GET", "?limit=1", peer="10.0.0.9:2")
    assert first["has_more"]
    rest = await call(app, "GET", f"?after_id={first['last_id']}", peer="10.0.0.9:2")
    assert [batch["id"] for batch in first["data"] + rest["data"]] == [batch["id"] for batch in listed["data"]]
    openai = await app.handle(Request("GET", "/v1/batches", peer="10.0.0.9:2"))
    assert (await whole(openai))["data"] == []


@pytest.mark.slow  # importing the client takes seconds
async def test_with_anthropics_client(make_app: MakeApp, tmp_path: Path) -> None:
    app, _ = await started(make_app, tmp_path, say("hello"))
    async with client(app) as api:
        batches = api.messages.batches
        batch = await batches.create(requests=[{"custom_id": "a", "params": HELLO}])  # type: ignore[typeddict-item]
        await finished(app, {"id": batch.id})
        batch = await batches.retrieve(batch.id)
        type(batch).model_validate(batch.to_dict(), strict=False)
        assert batch.ended_at
        assert batch.processing_status == "ended"
        [result] = [row async for row in await batches.results(batch.id)]
        assert result.result.type == "succeeded"
        assert result.result.message.content[0].text == "hello"  # type: ignore[union-attr]
        assert [one.id async for one in batches.list(limit=1)] == [batch.id]
        assert (await batches.delete(batch.id)).id == batch.id
        assert [one async for one in batches.list()] == []
    assert list((tmp_path / "files").iterdir()) == []
