"""A FIFO, a device, a socket or a directory in place of a graph or configuration file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.errors import StartError
from lean_ovms.features.ovms_files import config_editor, config_file, graph
from tests.repository.test_odd_files import alarm, make

__all__ = ["alarm", "make"]


def test_an_odd_file_is_an_error_at_once(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    odd = tmp_path / "config.json"
    make(odd)
    with pytest.raises(StartError, match="cannot be read"):
        config_file.read(odd)
    with pytest.raises(StartError, match="cannot be"):
        config_editor.remove(odd, "m")
    with pytest.raises(StartError, match="cannot be read"):
        graph.text_of(odd)
