"""`lean-ovms rm NAME ...`: deletes models from the repository."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...cli.arguments import own, parse
from ...cli.commands import hint, parser
from ...errors import ExitStatus, StartError
from ...observability.logging import abbreviate
from ...repository import model_file
from ...util.sizes import human_size
from ..deployment.desired import repository_of
from ..deployment.listing import servable
from .list import size


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Deletes all of the named models, or none if any of them does not exist. Raises StartError."""
    notes = "--model_repository_path DIR: from another directory than the user's cache"
    _, names, options = own(parser("rm", notes), argv)
    repository = repository_of(parse(options, environ))
    if not names:
        raise StartError("give the names of models, as lean_ovms list shows them")
    there = servable(repository)
    for name in names:
        if name not in there:
            near = hint(name, there, f"there are {abbreviate(there) or 'none'}")
            raise StartError(f"{repository} has no model {name} ({near})")
    for name in dict.fromkeys(names):
        _delete(repository, name)
    return ExitStatus.OK


def _delete(repository: Path, name: str) -> None:
    """Deletes a model's directory or file, or only the link if it is a symbolic link. Raises StartError."""
    path = repository / name
    freed = 0 if path.is_symlink() else size(path)
    try:
        for part in model_file.parts(path):
            part.unlink() if part.is_symlink() or part.is_file() else shutil.rmtree(part)
    except OSError as error:
        raise StartError(f"{error.filename or path}: {error.strerror}") from None
    if path.parent != repository:
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # removes an organization's directory with its last model
    print(f"deleted {path} ({human_size(freed)})")
