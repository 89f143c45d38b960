"""An app with files, and a client for it without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.features.batches.service import BatchService
from lean_ovms.types import Request, Response
from tests.api.conftest import MakeApp, parts, whole
from tests.fakes import FakeEngine
from tests.forms import form_request

CHAT = "/v1/chat/completions"
HELLO = [[(0, "hello", "stop")]]
DEADLINE_S = 60.0
FINISHED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, text: str = "Hi", **changes: Any) -> dict[str, Any]:
    """Returns a line of a batch of chats."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **changes}


def jsonl(*rows: Any) -> bytes:
    return b"".join(row if isinstance(row, bytes) else orjson.dumps(row) + b"\n" for row in rows)


class Client:
    """Does what OpenAI's client does, with an app without sockets."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.headers: dict[str, str] = {}

    async def call(self, method: str, path: str, peer: str = "", status: int = 200) -> Any:
        path, _, query = path.partition("?")
        return await self._whole(await self.app.handle(Request(method, path, query, self.headers, peer=peer)), status)

    async def upload(
        self, data: bytes, purpose: str = "batch", status: int = 200, peer: str = "", **fields: str
    ) -> Any:
        named = [(name.replace("__", "[") + "]" * ("__" in name), value) for name, value in fields.items()]
        request = form_request(
            "/v1/files", [("purpose", purpose), *named, ("file", ("in.jsonl", data))], **self.headers
        )
        request.peer = peer
        return await self._whole(await self.app.handle(request), status)

    async def create(
        self, input_file_id: str, endpoint: str = CHAT, status: int = 200, peer: str = "", **fields: Any
    ) -> Any:
        body = {"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": "24h", **fields}
        request = Request("POST", "/v1/batches", headers=self.headers, body=orjson.dumps(body), peer=peer)
        return await self._whole(await self.app.handle(request), status)

    async def start(self, *rows: Any, **fields: Any) -> Any:
        return await self.create((await self.upload(jsonl(*rows)))["id"], **fields)

    async def finished(self, batch: Any) -> Any:
        """Waits until a batch has finished, and returns it."""
        task = self.app.services.get(BatchService)._runs.get(batch["id"])
        if task is not None:
            await asyncio.wait_for(asyncio.shield(task), DEADLINE_S)
        found = await self.call("GET", f"/v1/batches/{batch['id']}")
        assert found["status"] in FINISHED
        return found

    async def content(self, file_id: str) -> bytes:
        response = await self.app.handle(Request("GET", f"/v1/files/{file_id}/content", headers=self.headers))
        assert response.status == 200
        return b"".join([part async for part in parts(response)])

    async def rows(self, file_id: str | None) -> dict[str, Any]:
        """Returns the outcomes in a file by custom_id, and checks that each is there once."""
        found = [] if file_id is None else [orjson.loads(row) for row in (await self.content(file_id)).splitlines()]
        named = {row["custom_id"]: row for row in found}
        assert len(named) == len(found)
        return named

    @staticmethod
    async def _whole(response: Response, status: int) -> Any:
        body = await whole(response)
        assert response.status == status, body
        return body


Made = tuple[Client, FakeEngine]
MakeClient = Callable[..., Awaitable[Made]]


@pytest.fixture
def make_client(make_app: MakeApp, tmp_path: Path) -> MakeClient:
    """Returns make_client(script, **options) -> (client, engine)."""

    async def make(script: Any = HELLO, **options: Any) -> Made:
        app, engine = await make_app(script, files_path=str(tmp_path / "files"), **options)
        await app.open()
        return Client(app), engine

    return make
