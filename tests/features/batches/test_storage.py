"""The directory of files and batches: what else is in it, and what fails when it is opened."""

from __future__ import annotations

import logging
from pathlib import Path

import orjson
import pytest

from lean_ovms.config import Config
from lean_ovms.features.batches.service import batch_body, file_body
from lean_ovms.features.batches.storage import BATCH, Entry, Storage

KEPT = Entry("me", batch_body(BATCH, "batch_1", "/v1/completions", "file-1"))
LOST = Entry("me", file_body("file-2", "a.txt", "user_data", 5, None))
"""A file without its data: its upload was interrupted."""


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    for entry in (KEPT, LOST):
        (tmp_path / f"{entry.body['id']}.json").write_text(entry.to_json())
    return Storage(Config(files_path=str(tmp_path)))


@pytest.mark.parametrize("name", ["id", "object", "status", "created_at", "input_file_id"])
def test_an_object_that_lacks_a_member_is_ignored(
    storage: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    body = {member: value for member, value in KEPT.body.items() if member != name}
    for content in ({"owner": "me", "body": body, "keep_s": 1}, {"owner": "me", "body": [], "keep_s": 1}, [], 5):
        (tmp_path / "other.json").write_bytes(orjson.dumps(content))
        with caplog.at_level(logging.ERROR):
            assert storage.open()
        storage.close()
        assert f"{tmp_path / 'other.json'} is damaged" in caplog.text
        caplog.clear()
        assert [entry.body["id"] for entry in storage.unfinished()] == ["batch_1"]


def test_a_directory_that_could_not_be_read_is_not_locked(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_drop", fail)
        with pytest.raises(OSError, match="Read-only"):
            storage.open()
    assert storage.open()
    storage.close()
