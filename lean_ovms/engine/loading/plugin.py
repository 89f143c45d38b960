"""Finds openvino's CPU plugin, the library that also contains operations that occur only in compiled networks."""

from __future__ import annotations

from . import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from pathlib import Path

import openvino as ov


def cpu_plugin() -> str:
    """Returns the path of openvino's CPU plugin, or the folder where it should be if it is missing."""
    folder = Path(ov.__file__).parent / "libs"
    return str(next(folder.glob("*openvino_*_cpu_plugin.*"), folder))
