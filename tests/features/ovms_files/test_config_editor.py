"""config.json is replaced atomically, repeated edits do no harm, and everything else in it stays."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.errors import StartError
from lean_ovms.features.ovms_files import config_editor
from lean_ovms.features.ovms_files.config_file import read
from lean_ovms.util import atomic_file

OTHERS: dict[str, Any] = {
    "custom": {"ü": [1, 2.5, None]},
    "monitoring": {"metrics": {"enable": True}},
    "model_config_list": [{"config": {"name": "a", "base_path": "/a", "nireq": 3}, "note": "kept"}],
    "mediapipe_config_list": [{"name": "g", "graph_path": "g.pbtxt"}],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(OTHERS))
    return path


def test_the_first_model_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.json"
    assert config_editor.add(path, "org/m", "org/m", {"target_device": "GPU"}) is True
    assert json.loads(path.read_text()) == {
        "model_config_list": [{"config": {"name": "org/m", "base_path": "org/m", "target_device": "GPU"}}]
    }
    assert [entry.name for entry in read(path).entries] == ["org/m"]


def test_what_is_unknown_stays(file: Path) -> None:
    config_editor.add(file, "b", "b")
    root = json.loads(file.read_text())
    assert root["model_config_list"].pop() == {"config": {"name": "b", "base_path": "b"}}
    assert root == OTHERS
    assert list(root) == list(OTHERS)
    assert "ü" in file.read_text()


def test_a_repeated_change_leaves_the_file_alone(file: Path) -> None:
    assert config_editor.add(file, "b", "b") is True
    once = file.read_bytes(), file.stat().st_mtime_ns
    assert config_editor.add(file, "b", "b") is False
    assert (file.read_bytes(), file.stat().st_mtime_ns) == once
    assert config_editor.remove(file, "b") is True
    assert config_editor.remove(file, "b") is False
    assert json.loads(file.read_text()) == OTHERS


def test_a_name_that_stands_for_something_else_is_not_replaced(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(StartError, match="already has a model a with other options"):
        config_editor.add(file, "a", "/elsewhere")
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["a", "g"])
def test_models_of_both_lists_can_be_removed(file: Path, name: str) -> None:
    assert config_editor.remove(file, name) is True
    assert config_editor.names(file) == [{"a": "g", "g": "a"}[name]]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_config_list": {}}', "\xff"])
def test_a_file_that_is_not_understood_is_not_touched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    for act in (lambda: config_editor.add(path, "m", "m"), lambda: config_editor.remove(path, "m")):
        with pytest.raises(StartError, match="nothing was changed"):
            act()
    assert path.read_bytes() == text.encode("latin-1")


def test_removing_from_no_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"the configuration file .*config\.json"):
        config_editor.remove(tmp_path / "config.json", "m")


def test_many_writers_lose_nothing(file: Path) -> None:
    threads = [threading.Thread(target=config_editor.add, args=(file, f"m{i}", "x")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(config_editor.names(file)) == sorted(["a", "g", *(f"m{i}" for i in range(12))])


def test_permissions_and_links_stay_and_no_crumbs(tmp_path: Path, file: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(file)
    config_editor.add(link, "b", "b")
    assert link.is_symlink()
    assert "b" in config_editor.names(file)
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["config.json", "link.json"]


def test_a_write_that_fails_leaves_the_old_text(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "replace", broken)
    with pytest.raises(StartError, match="cannot be changed: No space left on device"):
        config_editor.add(file, "b", "b")
    assert json.loads(file.read_text()) == OTHERS
    assert os.listdir(file.parent) == ["config.json"]
