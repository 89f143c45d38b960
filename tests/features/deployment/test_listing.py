"""The models in a repository that can be served, named by their paths, and the message if there are none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.composition import compose
from lean_ovms.errors import StartError, WrongOptions
from lean_ovms.features.deployment.listing import models_of, place, servable


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.mark.parametrize(
    ("files", "listed"),
    [
        # The example of OVMS's docs/starting_server.md, without its classic model.
        (
            "meta/llama4/graph.pbtxt meta/llama3.1/graph.pbtxt llama3.2/graph.pbtxt",
            "llama3.2 meta/llama3.1 meta/llama4",
        ),
        # Models without a graph; what is inside a model is none.
        ("org/m/openvino_model.xml org/m/org-draft/openvino_model.xml v/openvino_language_model.xml", "org/m v"),
        ("empty/notes.txt .pull/org--x/ready/openvino_model.xml graph.pbtxt", ""),
        # Models that speak.
        ("org/speecht5/openvino_vocoder.xml kokoro/openvino_model.xml kokoro/voices/a.bin", "kokoro org/speecht5"),
    ],
)
def test_models_are_known_by_their_files(tmp_path: Path, files: str, listed: str) -> None:
    touch(tmp_path, *files.split())
    assert servable(tmp_path) == listed.split()


def test_files_of_models_are_listed_by_their_paths_but_a_single_one_by_its_folder(tmp_path: Path) -> None:
    touch(tmp_path, "x.gguf", "mmproj-x.gguf", ".part.gguf", "y-00001-of-00002.gguf", "y-00002-of-00002.gguf")
    touch(tmp_path, "org/one/a.gguf", "org/one/mmproj-a.gguf", "several/a.gguf", "several/b.gguf", "ir/c.gguf")
    touch(tmp_path, "ir/openvino_model.xml", "large/Q4_K_M/z-00001-of-00002.gguf", "large/Q4_K_M/z-00002-of-00002.gguf")
    listed = ["ir", "large/Q4_K_M", "org/one", "several/a.gguf", "several/b.gguf", "x.gguf", "y-00001-of-00002.gguf"]
    assert servable(tmp_path) == listed
    (tmp_path / "single").mkdir()
    touch(tmp_path / "single", "x.gguf")
    assert servable(tmp_path / "single") == ["x.gguf"]  # the repository itself is no model


def test_no_directory_is_said(tmp_path: Path) -> None:
    for serve in (servable, lambda path: models_of(path, compose()), lambda path: place(path, "m")):
        with pytest.raises(StartError, match="no such directory"):
            serve(tmp_path / "none")


def test_a_directory_that_may_not_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is lost+found at the top of a file system."""
    touch(tmp_path, "m/graph.pbtxt", "org/n/graph.pbtxt", "lost+found/x")
    scandir = os.scandir

    def guarded(path: Path) -> Any:
        if Path(path).name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert servable(tmp_path) == ["m", "org/n"]


def test_a_circle_of_links_gives_no_model_a_second_name(tmp_path: Path) -> None:
    touch(tmp_path, "a/b/graph.pbtxt")
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    assert servable(tmp_path) == ["a/b"]


def test_a_name_is_found_in_the_repository(tmp_path: Path) -> None:
    touch(tmp_path, "m/graph.pbtxt", "org/n/openvino_model.xml", "org/checkpoint/model.safetensors", "x.gguf")
    for name in ("m", "org/n", "org/checkpoint", "x.gguf"):
        assert place(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize(
    "name", ["none", "org", "org/", ".", "..", "../here/m", "/", "m/../m", "m/", "./m", ".pull/x", "x\0"]
)
def test_a_name_that_is_not_there_lists_what_is(tmp_path: Path, name: str) -> None:
    here = tmp_path / "here"
    touch(here, "m/graph.pbtxt", "org/n/openvino_model.xml", ".pull/x/graph.pbtxt")
    with pytest.raises(WrongOptions, match=r"has no model .*; its models are: m, org/n$"):
        place(here, name)
    with pytest.raises(WrongOptions, match="has no model '/x'; its models are: m"):
        place(here, "/x")


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ((), "it is empty"),
        (("notes.txt", "q4/x.bin"), "it contains notes.txt, q4; put a model"),
        (("openvino_model.xml", "config.json"), r"is a model, .*; --model_path \S+ serves it"),
    ],
)
def test_a_repository_without_models_says_what_is_there(tmp_path: Path, inside: tuple[str, ...], message: str) -> None:
    touch(tmp_path, *inside)
    with pytest.raises(WrongOptions, match=message):
        models_of(tmp_path, compose())
    with pytest.raises(WrongOptions, match="it contains no models"):
        place(tmp_path, "m")


def test_a_command_that_fetches_models_is_named_where_there_is_one(tmp_path: Path) -> None:
    option = f"--model_repository_path {tmp_path}"
    begin = f"{option} contains no model: it is empty; put a model into it"
    for without, advice in (("", f", or pull one: --pull --source_model ORGANISATION/NAME {option}"), ("hub", "")):
        with pytest.raises(WrongOptions) as raised:
            models_of(tmp_path, compose(without))
        assert str(raised.value) == begin + advice


def test_a_message_names_some_of_many(tmp_path: Path) -> None:
    touch(tmp_path, *(f"m{i:02}/graph.pbtxt" for i in range(23)))
    with pytest.raises(WrongOptions, match=r"its models are: m00, .*, m19, and 3 more$"):
        place(tmp_path, "m")
