"""The archives with models for tests."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any

SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Early versions of Python 3.10 and 3.11 do not have filters."""


def extract(archive: Path, directory: Path, *begin: str) -> Path:
    """Extracts an archive into a directory, of a zip only files with a prefix. Returns the directory."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(directory, [name for name in packed.namelist() if name.startswith(begin or "")])
        return directory
    with tarfile.open(archive) as packed:
        packed.extractall(directory, **SAFELY)
    return directory
