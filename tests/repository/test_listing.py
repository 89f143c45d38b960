"""--list_models: what can be served, by its path in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from lean_ovms.errors import StartError
from lean_ovms.repository.listing import servable


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """docs/starting_server.md of OVMS, without its classic model."""
    touch(tmp_path, "meta/llama4/graph.pbtxt", "meta/llama3.1/graph.pbtxt", "llama3.2/graph.pbtxt")
    assert servable(tmp_path) == ["llama3.2", "meta/llama3.1", "meta/llama4"]


def test_models_without_a_graph_are_listed_and_what_is_inside_a_model_is_not(tmp_path: Path) -> None:
    touch(tmp_path, "org/m/openvino_model.xml", "org/m/org-draft/openvino_model.xml", "v/openvino_language_model.xml")
    touch(tmp_path, "empty/notes.txt", ".pull/org--x/ready/openvino_model.xml", "graph.pbtxt")
    assert servable(tmp_path) == ["org/m", "v"]


def test_circles_end(tmp_path: Path) -> None:
    touch(tmp_path, "a/b/graph.pbtxt")
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    assert "a/b" in servable(tmp_path)


def test_no_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no such directory"):
        servable(tmp_path / "none")
    assert servable(tmp_path) == []
