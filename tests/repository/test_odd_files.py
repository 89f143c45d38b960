"""A FIFO, a device, a socket or a directory in place of each file that is read: an immediate error, no waiting."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import DEMO_MODEL, Config
from lean_ovms.errors import StartError
from lean_ovms.features.genai_pipelines.child.image_tokens import Patches
from lean_ovms.repository import model_dir
from lean_ovms.text.template.chat_template import _override
from lean_ovms.util import files
from lean_ovms.util.files import open_regular, read_bytes, read_text


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Ends code that waits for a writer with an error."""

    def late(*_: object) -> None:
        raise AssertionError("waited for the other end of a FIFO")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


MAKERS: dict[str, Callable[[Path], Any]] = {
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    return MAKERS[request.param]


def model(tmp_path: Path, *without: str) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for file in DEMO_MODEL.iterdir():
        if file.is_file() and file.name not in without:
            (directory / file.name).symlink_to(file)
    return directory


def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "odd")
    for read in (open_regular, read_bytes, read_text):
        with pytest.raises(OSError, match="odd"):
            read(tmp_path / "odd")
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")
    (tmp_path / "text").write_bytes("\ufeffa\r\nb\rc\n".encode())
    (tmp_path / "link").symlink_to("text")
    assert read_text(tmp_path / "link", "utf-8-sig") == "a\nb\nc\n"
    assert read_bytes(str(tmp_path / "text")).endswith(b"\r\nb\rc\n")


def test_the_files_of_a_configuration(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    odd = tmp_path / "config.json"
    make(odd)
    assert files.read_or_none(odd) is None
    with pytest.raises(StartError, match="--chat_template"):
        _override(str(odd))
    assert Patches.read(tmp_path) is None


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "generation_config.json", "config.json", "openvino_model.bin", "some.index.json"]
)
def test_t21_the_files_of_a_model(tmp_path: Path, make: Callable[[Path], Any], name: str) -> None:
    directory = model(tmp_path, name)
    make(directory / name)
    if name in ("openvino_model.bin", "some.index.json") and (directory / name).is_dir():
        model_dir.check(directory)  # the engine reports its own error
        return
    with pytest.raises(StartError, match="cannot be read"):
        model_dir.read(Config(model_path=str(directory)))
