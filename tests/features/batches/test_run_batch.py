"""`lean-ovms run-batch` with an app whose answers are given."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.batches import run_batch
from lean_ovms.types import Request, Response
from tests.features.batches.conftest import jsonl, line


async def test_each_answer_is_in_the_file_before_the_next_request_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "out.jsonl", []

    async def handle(request: Request) -> Response:
        seen.append([orjson.loads(row)["custom_id"] for row in path.read_bytes().splitlines()])
        return Response(200, [], b"{}")

    @asynccontextmanager
    async def opened(config: Config) -> AsyncIterator[Any]:
        yield SimpleNamespace(handle=handle, config=config)

    monkeypatch.setattr(run_batch, "opened", opened)
    with path.open("wb") as target:
        await run_batch._run(Config(max_num_seqs=1), io.BytesIO(jsonl(*map(line, "abc"))), target)
    assert seen == [[], ["a"], ["a", "b"]]


@pytest.mark.parametrize(("source", "target"), [("none", "out"), ("in", "none/out")])
def test_a_file_that_cannot_be_opened_is_a_mistake_in_the_command(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_batch.log, "setup", lambda *_: None)  # it would set up the log of all later tests
    (tmp_path / "in").write_bytes(jsonl(line("a")))
    with pytest.raises(StartError, match=r"none.*: No such file or directory"):
        run_batch.main(["-i", str(tmp_path / source), "-o", str(tmp_path / target), "--fake_engine"], {})
