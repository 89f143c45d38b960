"""Batches of several clients, keys at their limits, a sleeping server, a full disk: no batch delays another, and each
ends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.features.batches import lines, results, service
from lean_ovms.features.batches.service import BatchService
from lean_ovms.features.deployment.model_cache import ModelCache
from lean_ovms.util import atomic_file
from tests.features.batches.conftest import HELLO, Client, MakeClient, jsonl, line
from tests.features.named_keys.files import written
from tests.waiting import until

ALICE, BOB = {"authorization": "Bearer sk-alice"}, {"authorization": "Bearer sk-bob"}


async def _as(client: Client, headers: dict[str, str]) -> Client:
    """Returns a client with another key for the same app."""
    other = Client(client.app)
    other.headers = headers
    return other


@pytest.mark.parametrize("limit", ["rpm_limit", "tpm_limit", "max_parallel_requests"])
@pytest.mark.slow
async def test_a_key_at_its_limit_delays_no_other_keys_batch(
    make_client: MakeClient, tmp_path: Path, limit: str
) -> None:
    keys = written(tmp_path, {"alice": {limit: 2}, "bob": {}})
    hangs = limit == "max_parallel_requests"
    client, _ = await make_client(
        lambda prompt, _: [] if hangs and "alice" in prompt else list(HELLO), api_key_file=keys, batch_concurrency=3
    )
    alice, bob = await _as(client, ALICE), await _as(client, BOB)
    if not hangs:
        alice.headers = BOB  # uploads count for a client, too
    file = await alice.upload(jsonl(*(line(str(number), "alice") for number in range(9))))
    alice.headers = ALICE
    large = await alice.create(file["id"])
    work = client.app.services.get(BatchService)
    await until(lambda: large["id"] in work._lines)
    done = await bob.finished(await bob.start(*map(line, "abcd")))
    assert done["request_counts"]["completed"] == 4
    for _ in range(9):  # whatever the limit is, a batch's own client may retrieve and cancel it
        found = await alice.call("GET", f"/v1/batches/{large['id']}")
    assert found["status"] == "in_progress"
    alice.headers = ALICE
    refused = await alice.call("DELETE", f"/v1/files/{file['id']}", status=400)  # the input of a batch that runs stays
    assert large["id"] in refused["error"]["message"]
    await alice.call("POST", f"/v1/batches/{large['id']}/cancel")
    assert (await alice.finished(large))["status"] == "cancelled"
    await alice.call("DELETE", f"/v1/files/{file['id']}")
    assert work._slots.used == 0


@pytest.mark.slow
async def test_the_clients_take_turns(make_client: MakeClient) -> None:
    client, engine = await make_client(batch_concurrency=1)
    slots = client.app.services.get(BatchService)._slots
    lease = await slots.acquire(1, "another")
    file = await client.upload(jsonl(*map(line, "ab")))
    batches = [await client.create(file["id"], peer="10.0.0.1:1") for _ in range(5)]
    batches.append(await client.create(file["id"], peer="10.0.0.2:1"))
    await until(lambda: (slots._wanted["10.0.0.1"], slots._wanted["10.0.0.2"]) == (5, 1))
    lease.release()
    for batch in batches:
        assert (await client.finished(batch))["request_counts"]["completed"] == 2
    order = [origin[0] for origin in engine.origins]
    assert (len(order), order[:5].count("10.0.0.2")) == (12, 2)


async def test_a_batch_goes_on_as_soon_as_the_server_wakes_up(make_client: MakeClient) -> None:
    cache, client = ModelCache(), (await make_client())[0]
    work = client.app.services.get(BatchService)
    tries: list[lines.Line] = []

    async def asleep(_: Any, sent: lines.Line, *others: Any) -> Any:
        tries.append(sent)
        if cache.asleep:
            raise lines.Busy(3600)
        return lines.row(sent.custom_id, {"status_code": 200}), False

    work._pause = cache.pause
    await cache.sleep()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "attempt", asleep)
        batch = await client.start(line("a"), line("b"))
        await until(lambda: len(tries) == 2)
        # Those that found no third line have read the file to its end in a thread.
        await until(lambda: work._slots.used == 0)
        await cache.wake_up()
        done = await client.finished(batch)
    assert done["request_counts"]["completed"] == 2
    assert len(tries) == 4


class Disk:
    """A disk to which nothing can be written while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        for owner, name in ((atomic_file.os, "replace"), (results, "_append")):
            monkeypatch.setattr(owner, name, self._checked(getattr(owner, name)))

    def _checked(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any) -> Any:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(*args)

        return checked


@pytest.mark.parametrize("filled", ["while it runs", "before its end", "while it is cancelled"])
@pytest.mark.slow
async def test_a_full_disk_keeps_no_batch_from_its_end(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, filled: str
) -> None:
    monkeypatch.setattr(service, "WRITE_AGAIN_S", 0.001)
    disk, cancels = Disk(monkeypatch), filled == "while it is cancelled"
    begun = asyncio.Event()

    def script(prompt: str, _: Any) -> Any:
        if "last" in prompt:
            disk.full = filled == "while it runs"
            begun.set()
        return [] if "last" in prompt and cancels else list(HELLO)

    client, _ = await make_client(script, batch_concurrency=1)
    file = await client.upload(jsonl(line("a"), line("b"), line("c", "last"), line("d")))
    disk.full = True
    for refused in (await client.upload(b"x", status=507), await client.create(file["id"], status=507)):
        assert (refused["error"]["code"], "disk" in refused["error"]["message"]) == ("storage_full", True)
    disk.full = False
    if filled == "before its end":
        finish = BatchService._finish

        async def fill(self: BatchService, *args: Any) -> None:
            disk.full = True
            await finish(self, *args)

        monkeypatch.setattr(BatchService, "_finish", fill)
    batch = await client.create(file["id"])
    if cancels:
        await asyncio.wait_for(begun.wait(), 60)
        disk.full = True
        await client.call("POST", f"/v1/batches/{batch['id']}/cancel")
    expected = {"while it runs": "failed", "before its end": "completed", "while it is cancelled": "cancelled"}[filled]
    body = client.app.services.get(BatchService).storage.find("batch", batch["id"]).body
    await until(lambda: body["status"] == expected)
    assert (body["errors"] is not None) == (expected != "completed")
    if body["errors"] is not None:
        assert (body["errors"]["data"][0]["code"], "disk" in body["errors"]["data"][0]["message"]) == (
            "storage_full",
            True,
        )
    await client.call("DELETE", f"/v1/files/{file['id']}")  # frees space
    disk.full = False
    done = await client.finished(batch)
    assert done["status"] == expected
    answers = {"a", "b", "c", "d"} if expected == "completed" else {"a", "b"}
    assert (await client.rows(done["output_file_id"])).keys() == answers
    await client.app.close()
    again, _ = await make_client()
    assert (await again.call("GET", f"/v1/batches/{batch['id']}")) == done


async def test_a_batch_that_is_deleted_before_its_end_is_written_stays_deleted(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service, "WRITE_AGAIN_S", 0.001)
    disk = Disk(monkeypatch)
    client, _ = await make_client(lambda *_: (setattr(disk, "full", True), list(HELLO))[1])
    batch = await client.start(line("a"))
    work = client.app.services.get(BatchService)
    entry = work.storage.find("batch", batch["id"])
    await until(lambda: entry.body["status"] == "failed")
    await work.delete(entry)
    disk.full = False
    await asyncio.wait([*work._runs.values()] or [asyncio.ensure_future(asyncio.sleep(0))])
    assert not [path for path in (tmp_path / "files").iterdir() if path.suffix]
