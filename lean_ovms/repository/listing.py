"""What can be served in a model repository, as --list_models prints it: paths relative to the repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import StartError
from .graph import FILE as GRAPH
from .model_dir import WEIGHTS

DEEPEST = 8
"""Directories below the repository that are looked into; also what ends a circle of symbolic links."""


def servable(repository: Path) -> list[str]:
    """Directories with a graph or an OpenVINO model, sorted. What is below one belongs to it. Raises StartError.

    OVMS lists directories with a graph, and those of classic models, which are not served here.
    """
    if not repository.is_dir():
        raise StartError(f"--model_repository_path {repository}: no such directory")
    try:
        return sorted(str(path.relative_to(repository)) for child in _children(repository) for path in _below(child, 1))
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}") from None


def _below(directory: Path, depth: int) -> Iterator[Path]:
    if any((directory / name).is_file() for name in (GRAPH, *WEIGHTS)):
        yield directory
    elif depth < DEEPEST:
        for child in _children(directory):
            yield from _below(child, depth + 1)


def _children(directory: Path) -> list[Path]:
    """Directories in it, without hidden ones: unfinished pulls and caches are there."""
    with os.scandir(directory) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
