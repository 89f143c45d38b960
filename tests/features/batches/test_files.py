"""Files: their content is returned unchanged, they are listed only for their own client, and they have limits."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from lean_ovms.features.batches import storage
from lean_ovms.types import Request
from tests.api.conftest import MakeApp
from tests.features.batches.conftest import HELLO, Client, MakeClient
from tests.forms import form_request


async def test_a_file_is_kept_as_it_came_and_ids_name_no_others(make_client: MakeClient, tmp_path: Path) -> None:
    client, _ = await make_client()
    data = bytes(range(256)) * 4000
    made = await client.upload(data, purpose="user_data")
    assert (made["object"], made["bytes"], made["filename"]) == ("file", len(data), "in.jsonl")
    assert made["expires_at"] is None
    assert await client.call("GET", f"/v1/files/{made['id']}") == made
    assert await client.content(made["id"]) == data
    gone = await client.call("DELETE", f"/v1/files/{made['id']}")
    assert gone == {"id": made["id"], "object": "file", "deleted": True}
    for path in (f"/v1/files/{made['id']}", f"/v1/files/{made['id']}/content"):
        await client.call("GET", path, status=404)
    (tmp_path / "secret.data").write_bytes(b"secret")
    for name in ("../secret", "..%2fsecret", "batch", ""):
        await client.call("GET", f"/v1/files/{name}/content", status=404)


async def test_files_outlive_the_server(make_client: MakeClient, tmp_path: Path) -> None:
    client, _ = await make_client()
    made = await client.upload(b"abc")
    await client.app.close()
    broken = {**made, "id": f"file-{'0' * 48}"}
    (tmp_path / "files" / f"{broken['id']}.json").write_bytes(orjson.dumps({"owner": "unknown", "body": broken}))
    (tmp_path / "files" / f"{broken['id']}.data").write_bytes(b"a")
    (tmp_path / "files" / "bad.json").write_bytes(b"{}")
    client, _ = await make_client()
    assert await client.content(made["id"]) == b"abc"
    await client.call("GET", f"/v1/files/{broken['id']}", status=404)
    assert not list((tmp_path / "files").glob(f"{broken['id']}*"))


async def test_lists(make_client: MakeClient) -> None:
    client, _ = await make_client()
    mine = [await client.upload(b"1"), await client.upload(b"2", purpose="evals")]
    await client.upload(b"3", peer="10.0.0.1:1")
    listed = await client.call("GET", "/v1/files?order=asc")
    assert {one["id"] for one in listed["data"]} == {one["id"] for one in mine}
    assert [one["id"] for one in (await client.call("GET", "/v1/files?purpose=evals"))["data"]] == [mine[1]["id"]]
    await client.call("GET", "/v1/files?limit=10001", status=400)


async def test_limits(make_client: MakeClient) -> None:
    client, _ = await make_client(max_files_per_client=2, max_files_mb=1)
    refused = await client.upload(b"x" * (1 << 20 | 1), status=507)
    assert refused["error"]["code"] == "storage_full"
    await client.upload(b"x" * (1 << 20))
    await client.upload(b"x", status=507)
    await client.upload(b"")
    assert (await client.upload(b"", status=400))["error"]["code"] == "too_many_files"
    await client.upload(b"", peer="10.0.0.1:1")


async def test_files_expire(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client, _ = await make_client()
    short = await client.upload(b"x", expires_after__anchor="created_at", expires_after__seconds="3600")
    assert short["expires_at"] == short["created_at"] + 3600
    batch = await client.upload(b"x")
    assert batch["expires_at"] == batch["created_at"] + storage.RETENTION_S
    for fields, param in (
        ({"expires_after__seconds": "59"}, "seconds"),
        ({"expires_after__anchor": "created_at"}, "seconds"),
        ({"expires_after__anchor": "now", "expires_after__seconds": "3600"}, "anchor"),
    ):
        refused = await client.upload(b"x", status=400, **fields)
        assert refused["error"]["param"] == f"expires_after.{param}"
    monkeypatch.setattr(storage.time, "time", lambda: short["expires_at"] + 1.0)
    await client.call("GET", f"/v1/files/{short['id']}", status=404)
    assert [one["id"] for one in (await client.call("GET", "/v1/files"))["data"]] == [batch["id"]]
    await client.upload(b"y")
    assert not (tmp_path / "files" / f"{short['id']}.data").exists()


async def test_without_a_directory_there_are_none(make_app: MakeApp) -> None:
    client = Client((await make_app(HELLO))[0])
    for path in ("/v1/files", "/v1/batches", "/v1/files/file-1/content"):
        assert "--files_path" in (await client.call("GET", path, status=501))["error"]["message"]


async def test_wrong_forms_are_refused_and_content_is_never_a_page(make_client: MakeClient) -> None:
    client, _ = await make_client()
    assert (await client.upload(b"x", purpose="fun", status=400))["error"]["param"] == "purpose"
    for parts, param in (([("purpose", "batch")], "file"), ([("purpose", "batch"), ("file", "text")], "file"),
                         ([("file", ("a", b"x"))], "purpose")):  # fmt: skip
        response = await client.app.handle(form_request("/v1/files", parts))
        assert (await client._whole(response, 400))["error"]["param"] == param
    made = await client.upload(b"<script>", purpose="user_data")
    response = await client.app.handle(Request("GET", f"/v1/files/{made['id']}/content"))
    headers = dict(response.headers)
    assert (headers["Content-Type"], headers["X-Content-Type-Options"]) == ("application/octet-stream", "nosniff")
    assert headers["Content-Disposition"] == "attachment"
    await response.aclose()
