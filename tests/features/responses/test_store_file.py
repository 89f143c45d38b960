"""The store's file: damaged pages, foreign files, a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import NotFound, StartError, StoreFailure
from lean_ovms.features.responses.sqlite import FULL, RESERVE_BYTES, Sqlite
from lean_ovms.features.responses.store import Context, Store


def store(path: Path, **options: Any) -> Store:
    return Store(Config(response_store=str(path), **options))


def body(number: int) -> dict[str, Any]:
    return {"id": f"resp_{number}", "created_at": 4e9, "status": "completed", "output": [], "background": False}


async def fill(path: Path, count: int = 40) -> None:
    filled = store(path)
    for number in range(count):
        await filled.finish(body(number), Context(input=[{"id": f"i{number}", "text": "x" * 5000}]))
    await filled.close()


def damage(path: Path) -> None:
    """Overwrites pages in the middle."""
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xa5" * 4096 * 8)


@pytest.mark.slow
async def test_a_damaged_store_is_set_aside_and_a_new_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    await fill(path)
    damage(path)
    damaged = path.read_bytes()
    opened = store(path)
    await opened.open()
    with pytest.raises(NotFound):
        await opened.get("resp_1")
    await opened.finish(body(1), Context())
    assert (await opened.get("resp_1"))[0] == body(1)
    await opened.close()
    [aside] = tmp_path.glob("store.db.damaged-*")
    assert aside.read_bytes() == damaged
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(aside) in record.getMessage()


@pytest.mark.slow
async def test_a_strict_server_does_not_start_with_a_damaged_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await fill(path)
    damage(path)
    with pytest.raises(StartError, match="is damaged: "):
        await store(path, response_store_strict=True).open()
    assert [file.name for file in tmp_path.glob("*damaged*")] == []


async def test_a_whole_store_and_a_foreign_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await fill(path, 2)
    opened = store(path)
    await opened.open()
    assert (await opened.get("resp_1"))[0] == body(1)
    await opened.close()
    text, database, whole = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "whole.db"
    text.write_text("not a database " * 1000)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [("x" * 2000,) for _ in range(50)])
        connection.commit()
    whole.write_bytes(database.read_bytes())
    damage(database)
    for file in (text, database, whole):
        with pytest.raises(StartError):
            await store(file).open()
        assert file.stat().st_size >= 15_000
    assert list(tmp_path.glob("*damaged*")) == []


async def test_deleting_uses_the_reserve_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    opened = store(path)
    for number in range(3):
        await opened.finish(body(number), Context())
    reserve = tmp_path / "store.db-reserve"
    assert reserve.stat().st_size >= RESERVE_BYTES
    execute = Sqlite.execute

    def full(self: Sqlite, sql: str, values: Any = ()) -> Any:
        if reserve.exists() and sql.startswith(("INSERT", "UPDATE", "DELETE")):
            raise sqlite3.OperationalError(FULL)
        return execute(self, sql, values)

    monkeypatch.setattr(Sqlite, "execute", full)
    with pytest.raises(StoreFailure, match=FULL):
        await opened.finish(body(7), Context())
    assert reserve.exists()  # reading does not use it up
    await opened.delete("response", "resp_1")
    assert not reserve.exists()
    with pytest.raises(NotFound):
        await opened.get("resp_1")
    assert (await opened.get("resp_2"))[0] == body(2)
    monkeypatch.setattr(Sqlite, "execute", execute)
    await opened.finish(body(8), Context())
    assert reserve.exists()  # made again for the next time
    monkeypatch.setattr(Sqlite, "execute", full)
    written, deleted = await asyncio.gather(
        opened.finish(body(9), Context()), opened.delete("response", "resp_2"), return_exceptions=True
    )
    assert isinstance(written, StoreFailure)
    assert deleted is None, "whatever waited with it"
    await opened.close()


async def test_the_reserve_has_room_for_what_the_log_adds_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    opened = store(path)
    await opened.open()
    with contextlib.closing(sqlite3.connect(path)) as reader:
        for number, size in enumerate([10, 300_000, 10, 5_000_000, 10, 10, 90_000, 10]):
            await opened.finish(body(number), Context(input=[{"id": f"i{number}", "text": incompressible(size)}]))
            [pages] = reader.execute("PRAGMA page_count").fetchone()
            [page_bytes] = reader.execute("PRAGMA page_size").fetchone()
            growth = pages * page_bytes - path.stat().st_size
            assert (tmp_path / "store.db-reserve").stat().st_size >= growth
    await opened.close()


@pytest.mark.parametrize("size", [9_000, 1_000_000])
@pytest.mark.slow
async def test_deleting_works_when_the_answers_themselves_fill_the_disk(small_disk: Path, size: int) -> None:
    with (small_disk / "filler").open("wb", 0) as filler:
        filler.write(bytes(6 << 20))
    opened, written = store(small_disk / "store.db"), 0

    async def write_on() -> None:
        nonlocal written
        while True:
            text = incompressible(size)
            await opened.finish(body(written), Context(input=[{"id": f"i{written}", "text": text}]))
            written += 1

    with pytest.raises(StoreFailure, match=FULL):
        await write_on()
    assert written >= 2
    for number in range(written):
        await opened.delete("response", f"resp_{number}")
        with pytest.raises(NotFound):
            await opened.get(f"resp_{number}")
    await opened.finish(body(written), Context())
    await opened.close()


def incompressible(size: int) -> str:
    """Returns a text of this size that cannot be compressed."""
    return Random(size).randbytes(size // 2).hex()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MB, if this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], capture_output=True)
    if not made or made.returncode:
        pytest.skip("no disk may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
