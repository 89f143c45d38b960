"""What can be served in a model repository: its models, by their paths in it, which are also their names in the API."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from ..errors import StartError, WrongOptions
from ..observability.logging import safe
from .graph import FILE as GRAPH
from .model_dir import WEIGHTS

log = logging.getLogger("lean_ovms.models")

DEEPEST = 8
"""Directories below the repository that are looked into."""
MOST_NAMED = 20
"""Models that a message names."""


def servable(repository: Path, look: Callable[[Path], object] = lambda _: None) -> list[str]:
    """Directories with a graph or an OpenVINO model, sorted. What is below one belongs to it. Raises StartError.

    look: called with each directory that is no model, before it is read. OVMS lists directories with a graph, and those
    of classic models, which are not served here. Directories that may not be read are left out, with a warning.
    """
    try:
        os.scandir(repository).close()
    except OSError as error:
        problem = "no such directory" if isinstance(error, FileNotFoundError) else error.strerror
        raise StartError(f"--model_repository_path {repository}: {problem}") from None
    found = _inside(repository, 0, (), look)
    return sorted(str(path.relative_to(repository)) for path in found)


def models_of(repository: Path, look: Callable[[Path], object] = lambda _: None) -> list[str]:
    """What is servable, at least one. Raises WrongOptions that says what is there instead."""
    names = _to_serve(repository, look)
    if names:
        return names
    where = f"--model_repository_path {repository}"
    if is_model(repository):
        raise WrongOptions(f"{where} is a model itself, not a directory of models: --model_path {repository} serves it")
    inside = shown(sorted(entry.name for entry in repository.iterdir()))
    raise WrongOptions(f"{where} has no model to serve: it {f'holds {inside}' if inside else 'is empty'}")


def place(repository: Path, name: str) -> Path:
    """Where the model of that name is in the repository. Raises WrongOptions that lists the models that are there.

    A directory that holds no model, nor any below, is left to whoever reads it, who knows what it is instead.
    """
    path, there = repository / name, _to_serve(repository)
    parts = PurePath(name).parts
    leads_out = name != "/".join(parts) or any(part.startswith((".", "/")) for part in parts)
    above = any(one.startswith(f"{name}/") for one in there)
    if name in there or (os.path.exists(path) and not leads_out and not above):
        return path
    models = f"there are: {shown(there)}" if there else "there is no model at all"
    raise WrongOptions(f"--model_repository_path {repository} has no model {safe(name)!r}; {models}")


def _to_serve(repository: Path, look: Callable[[Path], object] = lambda _: None) -> list[str]:
    """As servable; a server cannot start with a repository that is not there."""
    try:
        return servable(repository, look)
    except StartError as error:
        raise WrongOptions(str(error)) from None


def shown(names: list[str]) -> str:
    """Names for a message, not too many."""
    more = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return ", ".join([*map(safe, names[:MOST_NAMED]), *more])


def is_model(directory: Path) -> bool:
    """Whether it has a graph or the network of a text model. Raises OSError."""
    return any((directory / name).is_file() for name in (GRAPH, *WEIGHTS))


def _inside(directory: Path, depth: int, above: tuple[str, ...], look: Callable[[Path], object]) -> Iterator[Path]:
    """Models below a directory. above: the real paths of those that led to it, which end a circle of links."""
    real = os.path.realpath(directory)
    if depth == DEEPEST or real in above:
        return
    look(directory)
    try:
        for child in _children(directory):
            yield from [child] if _readable_model(child) else _inside(child, depth + 1, (*above, real), look)
    except OSError as error:
        log.warning("%s is left out: %s", error.filename or directory, error.strerror)


def _readable_model(directory: Path) -> bool:
    """One whose files may not be seen is no model; reading the directory itself says why."""
    try:
        return is_model(directory)
    except OSError:
        return False


def _children(directory: Path) -> list[Path]:
    """Directories in it, without hidden ones: unfinished pulls and caches are there."""
    with os.scandir(directory) as entries:
        return [Path(entry.path) for entry in entries if not entry.name.startswith(".") and os.path.isdir(entry)]
