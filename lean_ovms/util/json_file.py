"""Reading a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .files import read_bytes


def read(path: Path) -> Any:
    """Returns the value in the file. Raises OSError, or ValueError for a text that is not JSON or nested too deeply."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in the file; {} if the file is missing, cannot be read, or holds something else."""
    value = read_or_none(path)
    return value if isinstance(value, dict) else {}


def read_or_none(path: Path) -> Any:
    """Returns the value in the file; None if the file is missing, or cannot be read. Others report that."""
    try:
        return read(path)
    except (OSError, ValueError):
        return None
