"""Each line of a batch has one outcome, even if the server restarts, clients disconnect or the batch expires."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import BadRequest, EngineFailure, RequestError, TooManyRequests
from lean_ovms.features.batches import lines
from lean_ovms.features.batches.results import Results
from lean_ovms.features.batches.service import BatchService
from lean_ovms.features.batches.storage import Storage
from lean_ovms.types import Request
from tests.features.batches.conftest import CHAT, HELLO, Client, MakeClient, jsonl, line
from tests.features.named_keys.files import written


async def test_each_line_has_one_outcome(make_client: MakeClient) -> None:
    client, _ = await make_client()
    rows = [line(str(number), f"Text {number}") for number in range(12)]
    rows[7]["body"]["temperature"] = 99
    rows[8]["body"]["stream"] = rows[9]["body"]["background"] = True
    batch = await client.start(*rows, metadata={"night": "1"})
    assert batch["status"] == "validating"
    assert batch["metadata"] == {"night": "1"}
    done = await client.finished(batch)
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 12, "completed": 9, "failed": 3}
    assert done["created_at"] <= done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
    assert done["expires_at"] == done["created_at"] + 24 * 3600
    answers, errors = await client.rows(done["output_file_id"]), await client.rows(done["error_file_id"])
    assert answers.keys() | errors.keys() == {str(number) for number in range(12)}
    assert answers["3"]["response"]["body"]["choices"][0]["message"]["content"] == "hello"
    assert answers["3"]["response"]["status_code"] == 200
    assert answers["3"]["response"]["request_id"]
    assert answers["3"]["error"] is None
    assert errors["7"]["response"]["status_code"] == 400
    params = {name: row["response"]["body"]["error"]["param"] for name, row in errors.items()}
    assert params == {"7": "temperature", "8": "stream", "9": "background"}
    file = await client.call("GET", f"/v1/files/{done['output_file_id']}")
    assert file["purpose"] == "batch_output"
    assert file["bytes"] == len(await client.content(file["id"]))
    assert file["filename"] == f"{batch['id']}_output.jsonl"


async def test_only_the_servers_user_can_read_the_files_in_a_directory_that_others_can_read(
    make_client: MakeClient, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir(0o755)
    client, _ = await make_client()
    wrong = line("b")
    wrong["body"]["temperature"] = 99
    await client.finished(await client.start(line("a"), wrong))
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "files").iterdir()]
    assert modes == [0o600] * len(modes)
    assert len(modes) == 7  # the batch; and of the input, the answers and the errors, the object and the bytes


async def test_lines_have_the_lowest_priority_and_the_client_of_the_batch(make_client: MakeClient) -> None:
    client, engine = await make_client()
    own = line("own")
    own["body"]["priority"] = 3
    data = jsonl(line("none"), own)
    file = await client.upload(data, peer="10.0.0.9:77")
    batch = await client.create(file["id"], peer="10.0.0.9:78")
    await client.finished(batch)
    assert sorted((origin[0], origin[2]) for origin in engine.origins) == [("10.0.0.9", 3), ("10.0.0.9", (1 << 63) - 1)]


WRONG: list[tuple[Any, str, str | None]] = [
    (b"{no json\n", "invalid_json_line", None),
    (b"[]\n", "invalid_json_line", None),
    (line("a", method="GET"), "invalid_method", "method"),
    (line("a", url="/v1/embeddings"), "invalid_url", "url"),
    (line("ok"), "duplicate_custom_id", "custom_id"),
    (line(""), "missing_required_parameter", "custom_id"),
    (line("x" * 513), "invalid_custom_id", "custom_id"),
    (line("a", body={"messages": []}), "missing_required_parameter", "body.model"),
    (line("a", body=None), "missing_required_parameter", "body"),
]


def test_wrong_lines_are_named() -> None:
    for bad, code, param in WRONG:
        total, [error] = lines.check([jsonl(line("ok")), b"\n", jsonl(bad)], (CHAT,), 2)
        assert (total, error["code"], error["param"], error["line"]) == (2, code, param, 3)
    total, errors = lines.check([b"x\n"] * 5000, (CHAT,), 50000)
    assert (len(errors), total < 5000) == (lines.MAX_ERRORS, True)


async def test_a_wrong_file_fails_the_batch(make_client: MakeClient) -> None:
    client, engine = await make_client(max_batch_lines=2)
    wrong = ((b"\n", "empty_file"), (jsonl(*map(line, "abc")), "too_many_requests"), (b"[]\n", "invalid_json_line"))
    for data, code in wrong:
        done = await client.finished(await client.create((await client.upload(data))["id"]))
        assert (done["status"], done["failed_at"] > 0) == ("failed", True)
        assert [error["code"] for error in done["errors"]["data"]] == [code]
    assert not engine.submitted


async def test_a_busy_server_gets_the_line_again(make_client: MakeClient) -> None:
    refusals: list[RequestError] = [TooManyRequests("full", retry_after_s=0)] * 3
    client, _ = await make_client(lambda *_: [refusals.pop()] if refusals else list(HELLO[:]))
    done = await client.finished(await client.start(line("a")))
    assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert not refusals
    refusals = [EngineFailure("it broke")]  # which is an outcome
    done = await client.finished(await client.start(line("a")))
    errors = await client.rows(done["error_file_id"])
    assert (errors["a"]["response"]["status_code"], done["output_file_id"]) == (500, None)


def _some_hang(started: asyncio.Event) -> Any:
    """Returns a script that answers prompts which contain "ok", and never answers others."""

    def script(prompt: Any, sampling: Any) -> Any:
        if "ok" in prompt:
            return list(HELLO)
        started.set()
        return []

    return script


async def test_what_is_done_stays_when_a_batch_is_cancelled(make_client: MakeClient) -> None:
    started = asyncio.Event()
    client, engine = await make_client(_some_hang(started), batch_concurrency=1)
    batch = await client.start(line("1", "ok"), line("2", "ok"), line("3"), line("4"))
    await asyncio.wait_for(started.wait(), 60)
    running = await client.call("GET", f"/v1/batches/{batch['id']}")
    assert running["status"] == "in_progress"
    assert running["request_counts"] == {"total": 4, "completed": 2, "failed": 0}
    cancelled = await client.call("POST", f"/v1/batches/{batch['id']}/cancel")
    assert cancelled["status"] in ("cancelling", "cancelled")
    done = await client.finished(batch)
    assert done["status"] == "cancelled"
    assert done["cancelling_at"] <= done["cancelled_at"]
    assert done["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert (await client.rows(done["output_file_id"])).keys() == {"1", "2"}
    errors = await client.rows(done["error_file_id"])
    assert {name: row["error"]["code"] for name, row in errors.items()} == dict.fromkeys("34", "batch_cancelled")
    assert len(engine.cancelled) == 1
    await client.call("POST", f"/v1/batches/{batch['id']}/cancel", status=409)


@pytest.mark.slow
async def test_batches_that_wait_have_no_files_open(make_client: MakeClient, tmp_path: Path) -> None:
    started = asyncio.Event()
    client, _ = await make_client(_some_hang(started), batch_concurrency=1)
    file = await client.upload(jsonl(line("1"), line("2")))
    for _ in range(9):
        await client.create(file["id"])
    service = client.app.services.get(BatchService)
    await asyncio.wait_for(started.wait(), 60)
    deadline = time.monotonic() + 60
    while len(service._lines) < 9 and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert len(service._lines) == 9
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert not [link for link in links if link.startswith(f"{os.path.realpath(tmp_path)}/files/")]


async def _leave_during(storage: Any, method: str, call: Coroutine[Any, Any, Any]) -> None:
    """Cancels a call while the storage's thread executes a method for it, as happens when a client disconnects."""
    loop, entered, leave = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    original = getattr(storage, method)

    def wait(*args: Any) -> Any:
        loop.call_soon_threadsafe(entered.set)
        assert leave.wait(60)
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, method, wait)
        task = asyncio.create_task(call)
        await asyncio.wait_for(entered.wait(), 60)
        task.cancel()
        await asyncio.wait([task])
        leave.set()


async def test_a_batch_whose_client_left_while_it_was_stored_runs(make_client: MakeClient) -> None:
    client, _ = await make_client()
    service = client.app.services.get(BatchService)
    file = await client.upload(jsonl(line("1")))
    await _leave_during(service.storage, "add", client.create(file["id"]))
    await service.in_thread(lambda: None)
    [batch] = (await client.call("GET", "/v1/batches"))["data"]
    while batch["status"] != "completed":  # its run may begin in a later iteration of the event loop
        await asyncio.sleep(0.001)
        batch = await client.call("GET", f"/v1/batches/{batch['id']}")


async def test_a_batch_whose_client_left_while_it_was_cancelled_ends(make_client: MakeClient) -> None:
    started = asyncio.Event()
    client, _ = await make_client(_some_hang(started))
    batch = await client.start(line("1"))
    await asyncio.wait_for(started.wait(), 60)
    storage = client.app.services.get(BatchService).storage
    await _leave_during(storage, "put", client.call("POST", f"/v1/batches/{batch['id']}/cancel"))
    assert (await client.finished(batch))["status"] == "cancelled"


async def test_a_batch_expires(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = await make_client(_some_hang(asyncio.Event()))
    monkeypatch.setattr("lean_ovms.features.batches.service.WINDOW_S", 0)
    done = await client.finished(await client.start(line("1"), line("2")))
    assert done["status"] == "expired"
    assert done["expired_at"]
    errors = await client.rows(done["error_file_id"])
    assert {name: row["error"]["code"] for name, row in errors.items()} == dict.fromkeys("12", "batch_expired")


async def test_a_batch_goes_on_after_a_restart(make_client: MakeClient, tmp_path: Path) -> None:
    started = asyncio.Event()
    client, _ = await make_client(_some_hang(started), batch_concurrency=1)
    batch = await client.start(*(line(str(number), "ok" * (number < 5)) for number in range(20)))
    await asyncio.wait_for(started.wait(), 60)
    await client.app.close()
    [output] = (tmp_path / "files").glob("*-output.data")
    torn = output.read_bytes() + orjson.dumps(lines.row("7", {"status_code": 200}))[:-3]
    output.write_bytes(torn)  # as after a power failure
    client, engine = await make_client()
    done = await client.finished(batch)
    assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert (await client.rows(done["output_file_id"])).keys() == {str(number) for number in range(20)}
    assert len(engine.submitted) == 15


async def test_a_cancelled_batch_stays_cancelled_after_a_restart(make_client: MakeClient) -> None:
    started = asyncio.Event()
    client, _ = await make_client(_some_hang(started))
    batch = await client.start(line("1"))
    await asyncio.wait_for(started.wait(), 60)
    await client.call("POST", f"/v1/batches/{batch['id']}/cancel")
    await client.app.close()
    client, engine = await make_client()
    done = await client.finished(batch)
    assert done["status"] == "cancelled"
    assert not engine.submitted


async def test_a_second_server_waits_for_the_directory(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lean_ovms.features.batches.service.LOCK_POLL_S", 0.0)
    first, _ = await make_client()
    file = await first.upload(b"x")
    second, _ = await make_client()
    await second.call("GET", "/v1/files", status=503)
    await first.app.close()
    deadline = time.monotonic() + 60
    while (response := await _status(second.app, file["id"])) == 503 and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert response == 200


async def _status(app: App, name: str) -> int:
    return (await app.handle(Request("GET", f"/v1/files/{name}"))).status


async def test_a_full_directory_fails_the_batch_and_keeps_what_is_done(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = await make_client(batch_concurrency=1)
    storage = client.app.services.get(BatchService).storage
    file = await client.upload(jsonl(*(line(str(number)) for number in range(9))))
    monkeypatch.setattr(storage, "_most_bytes", storage.used + 2000)
    done = await client.finished(await client.create(file["id"]))
    assert done["status"] == "failed"
    assert done["errors"]["data"][0]["code"] == "storage_full"
    assert 0 < len(await client.rows(done["output_file_id"])) < 9


async def test_the_body_of_a_batch_is_checked(make_client: MakeClient) -> None:
    client, _ = await make_client()
    other, file = await client.upload(b"x", purpose="user_data"), await client.upload(jsonl(line("a")))
    assert (await client.create(other["id"], status=400))["error"]["param"] == "input_file_id"
    assert (await client.create("file-none", status=404))["error"]["code"] == "not_found"
    for changes in ({"endpoint": "/v1/audio"}, {"completion_window": "1h"}, {"completion_window": None}):
        [name] = changes
        assert (await client.create(file["id"], status=400, **changes))["error"]["param"] == name


async def test_lists_have_what_the_same_client_made(make_client: MakeClient) -> None:
    client, _ = await make_client()
    made = [await client.start(line("a")) for _ in range(3)]
    for batch in made:
        await client.finished(batch)
    names = {batch["id"] for batch in made}
    first = await client.call("GET", "/v1/batches?limit=2")
    assert first["has_more"]
    rest = await client.call("GET", f"/v1/batches?limit=2&after={first['last_id']}")
    assert {one["id"] for one in first["data"] + rest["data"]} == names
    assert (await client.call("GET", "/v1/batches", peer="10.1.1.1:5"))["data"] == []
    await client.call("GET", f"/v1/batches/{made[0]['id']}", peer="10.1.1.1:5")
    await client.call("GET", "/v1/batches?after=none", status=400)


async def test_a_batch_has_the_key_of_its_client(make_client: MakeClient, tmp_path: Path) -> None:
    file = written(tmp_path, {"a": {}, "b": {"models": ["x"]}})
    client, engine = await make_client(api_key_file=file)
    client.headers["authorization"] = "Bearer sk-a"
    done = await client.finished(await client.start(line("1"), line("2")))
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert {client for client, _, _ in engine.origins} == {"key:a"}
    client.headers["authorization"] = "Bearer sk-b"
    assert (await client.call("GET", "/v1/batches"))["data"] == []
    refused = await client.finished(await client.start(line("1")))
    [row] = (await client.rows(refused["error_file_id"])).values()
    assert row["response"]["status_code"] == 404


async def test_a_revoked_key_ends_what_its_batches_may_do(make_client: MakeClient, tmp_path: Path) -> None:
    started = asyncio.Event()
    file = written(tmp_path, {"a": {}, "b": {}})
    client, _ = await make_client(_some_hang(started), api_key_file=file)
    client.headers["authorization"] = "Bearer sk-a"
    batch = await client.start(line("1"))
    await asyncio.wait_for(started.wait(), 60)
    await client.app.close()
    written(tmp_path, {"b": {}})
    client, engine = await make_client(api_key_file=file)
    client.headers["authorization"] = "Bearer sk-b"
    done = await client.finished(batch)
    [row] = (await client.rows(done["error_file_id"])).values()
    assert row["response"]["status_code"] == 401
    assert not engine.submitted


async def test_embeddings(make_pooling: Any, tmp_path: Path) -> None:
    app, _ = await make_pooling(files_path=str(tmp_path / "p"))
    await app.open()
    client = Client(app)
    row = line("a", url="/v1/embeddings", body={"model": "e", "input": "text"})
    done = await client.finished(await client.start(row, endpoint="/v1/embeddings"))
    answers = await client.rows(done["output_file_id"])
    assert answers["a"]["response"]["body"]["data"][0]["embedding"]


# --- lines, whatever they are, and results as a crash may leave them


VALUES = (None, True, 0, "", "é", CHAT, [], ["m"], {}, {"model": 5}, {"model": "m", "priority": "x", "stream": []})
CHANGED = [orjson.dumps(line("a") | {name: value}) for name in line("a") for value in VALUES]


def test_a_line_is_a_request_or_a_bad_one() -> None:
    for raw in (b"", b"5", b"\xff", b"[" * 100_000, *CHANGED):
        with contextlib.suppress(BadRequest):
            found = lines.read_line(raw, (CHAT,))
            assert found.url == CHAT
            assert isinstance(orjson.loads(found.body)["model"], str)


async def _at_once(function: Callable[[], Any]) -> Any:
    return function()


async def test_results_that_were_cut_anywhere(tmp_path: Path) -> None:
    rows = [orjson.dumps(lines.row(str(number), {"status_code": 200})) + b"\n" for number in range(3)]
    whole = b"".join(rows)
    paths = [tmp_path / "output", tmp_path / "error"]
    for cut in range(0, len(whole) + 1, 29):
        paths[0].write_bytes(whole[:cut])
        storage = Storage(Config(files_path=str(tmp_path)))
        storage.used = cut
        results = Results(storage, paths, _at_once)
        there = whole[:cut].count(b"\n")
        assert results.done == {str(number) for number in range(there)}
        assert results.counts == [there, 0]
        for number in range(there, 3):
            results.put(orjson.loads(rows[number]), failed=False)
        await results.flush()
        assert paths[0].read_bytes() == whole
        assert storage.used == len(whole)
