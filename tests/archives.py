"""The archives with models for tests."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Early versions of Python 3.10 and 3.11 have no filters."""


def extract(archive: Path, directory: Path) -> Path:
    """Puts the files of an archive into a directory, and returns this."""
    with tarfile.open(archive) as packed:
        packed.extractall(directory, **SAFELY)
    return directory
