"""The archives with models for tests."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any

SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Early versions of Python 3.10 and 3.11 have no filters."""


def extract(archive: Path, directory: Path, *begin: str) -> Path:
    """Puts the files of an archive into a directory, of a zip those whose names begin so, and returns this."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(directory, [name for name in packed.namelist() if name.startswith(begin or "")])
        return directory
    with tarfile.open(archive) as packed:
        packed.extractall(directory, **SAFELY)
    return directory
