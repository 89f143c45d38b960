"""Uploaded files that messages name by their ids, on a server that stores none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.uploaded import uploaded


async def test_without_batches_there_are_no_files() -> None:
    services: Any = SimpleNamespace(config=Config(without="batches"))
    with pytest.raises(BadRequest) as refusal:
        await uploaded(services, "file-1", 10, "the image in image_url")
    assert refusal.value.message == "files by their ids are not supported on this server; send the image in image_url"
