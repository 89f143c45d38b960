"""Reading JSON files: strictly, or as far as they exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from lean_ovms.repository import model_config
from lean_ovms.util import files

BROKEN = [b"", b"{", b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("data", BROKEN, ids=["empty", "cut", "not UTF-8", "too deep"])
def test_a_file_that_is_not_json_is_a_value_error_or_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ValueError):  # noqa: PT011 - its text is that of the json module
        files.read(path)
    assert files.read_or_none(path) is None
    assert model_config.read(tmp_path) == {}


def test_a_missing_file_is_an_os_error_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none")
    assert files.read_object(tmp_path / "none") == {}


@pytest.mark.parametrize(("text", "value"), [('{"a": 1}', {"a": 1}), ("[1]", {}), ('\ufeff{"a": 2}', {"a": 2})])
def test_only_an_object_counts_as_one(tmp_path: Path, text: str, value: object) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, "utf-8")
    assert files.read_object(path) == value
