"""The library that computes networks on the CPU, which also has operations that networks have only when compiled."""

from __future__ import annotations

from . import quiet_imports  # noqa: F401 - first, for its effect

# isort: split
from pathlib import Path

import openvino as ov


def cpu_plugin() -> str:
    """Returns the path of openvino's plugin for CPUs, or the folder in which it is not."""
    folder = Path(ov.__file__).parent / "libs"
    return str(next(folder.glob("*openvino_*_cpu_plugin.*"), folder))
