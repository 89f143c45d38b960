"""Lists the models of a model repository. A model's name in the API is its path in the repository."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from ...composition import Composition, compose
from ...errors import StartError, WrongOptions
from ...observability.logging import abbreviate, safe
from ...repository import model_file
from ...repository.model_config import networks

log = logging.getLogger("lean_ovms.models")

MAX_DEPTH = 8
"""Levels of directories that are searched."""


def servable(repository: Path, visit: Callable[[Path], object] = lambda _: None) -> list[str]:
    """Returns the sorted names of the models: directories, and files of models that consist of one. Raises StartError.

    A directory is a model if it has an OpenVINO model or options of one, or a single model file and is not the
    repository. Directories below a model belong to it. Those without read permission are skipped with a warning.
    `visit` is called with each directory without an OpenVINO model, before it is read.
    """
    try:
        os.scandir(repository).close()
    except OSError as error:
        problem = "no such directory" if isinstance(error, FileNotFoundError) else error.strerror
        raise StartError(f"--model_repository_path {repository}: {problem}") from None
    return sorted(str(path.relative_to(repository)) for path in _inside(repository, 0, (), visit))


def models_of(
    repository: Path, composition: Composition, visit: Callable[[Path], object] = lambda _: None
) -> list[str]:
    """Returns the names of the models as `servable` does, at least one.

    Args:
        repository: The directory of models.
        composition: The features, which may have a command that fetches a model.
        visit: Is called with each directory without an OpenVINO model, before it is read.

    Raises:
        WrongOptions: There is no model; the message says what the directory contains instead.
    """
    names = _to_serve(repository, visit)
    if names:
        return names
    option = f"--model_repository_path {repository}"
    if is_model(repository):
        raise WrongOptions(f"{option} is a model, not a directory of models; --model_path {repository} serves it")
    inside = abbreviate(sorted(entry.name for entry in repository.iterdir()))
    fetch = (
        f", or {row.word} one: --{name} --source_model ORGANISATION/NAME {option}"
        for name, row in composition.fetching_commands.items()
    )
    raise WrongOptions(
        f"{option} contains no model: it {f'contains {inside}' if inside else 'is empty'}; "
        f"put a model into it{''.join(fetch)}"
    )


def place(repository: Path, name: str) -> Path:
    """Returns the path of the model with a name. Raises WrongOptions with a list of the models if there is none.

    An existing path without a model is returned as well, since loading it gives a better error.
    """
    path, there = repository / name, _to_serve(repository)
    parts = PurePath(name).parts
    is_outside = name != "/".join(parts) or any(part.startswith((".", "/")) for part in parts)
    above = any(one.startswith(f"{name}/") for one in there)
    if name in there or (os.path.exists(path) and not is_outside and not above):
        return path
    models = f"its models are: {abbreviate(there)}" if there else "it contains no models"
    raise WrongOptions(f"--model_repository_path {repository} has no model {safe(name)!r}; {models}")


def _to_serve(repository: Path, visit: Callable[[Path], object] = lambda _: None) -> list[str]:
    """Returns the names of the models as `servable` does. Raises WrongOptions if the repository is missing."""
    try:
        return servable(repository, visit)
    except StartError as error:
        raise WrongOptions(str(error)) from None


def is_model(directory: Path) -> bool:
    """Returns whether a directory has the network of a model, or options of one. Raises OSError."""
    settings = compose().settings
    shown_by = networks() if settings is None else (settings.file, *networks())
    return any((directory / name).is_file() for name in shown_by)


def _inside(directory: Path, depth: int, above: tuple[str, ...], visit: Callable[[Path], object]) -> Iterator[Path]:
    """Yields the paths of the models below a directory, or the directory itself if it is one by a single model file.

    Args:
        directory: The directory.
        depth: The number of levels by which it is below the repository.
        above: The real paths of its parents, by which cycles of links are detected.
        visit: Is called with the directory, and with each below it without an OpenVINO model, before it is read.
    """
    real = os.path.realpath(directory)
    if depth == MAX_DEPTH or real in above:
        return
    visit(directory)
    try:
        files = _model_files(directory)
        if files and depth and len(model_file.models_in(directory)) == 1:
            yield directory
            return
        yield from files
        for child in _children(directory):
            yield from [child] if _readable_model(child) else _inside(child, depth + 1, (*above, real), visit)
    except OSError as error:
        log.warning("%s is skipped: %s", error.filename or directory, error.strerror)


def _readable_model(directory: Path) -> bool:
    """Returns whether a directory has a model, or False without read permission, which is reported elsewhere."""
    try:
        return is_model(directory)
    except OSError:
        return False


def _model_files(directory: Path) -> list[Path]:
    """Returns the model files in a directory, except hidden ones: whole files, and first parts of split files."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and os.path.isfile(entry)]
    return [directory / name for name in model_file.models_among(names)]


def _children(directory: Path) -> list[Path]:
    """Returns the subdirectories, except hidden ones, which are unfinished pulls and caches."""
    with os.scandir(directory) as entries:
        return [Path(entry.path) for entry in entries if not entry.name.startswith(".") and os.path.isdir(entry)]
