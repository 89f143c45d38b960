"""`lean-ovms list`: the models of the repository with their size, precision, task and date."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import StartError
from ..hub.staging import human_size
from ..repository import task, weights
from ..repository.listing import servable
from ..server import exit_status
from .arguments import own, parse
from .command_table import parser, table
from .commands import with_repository

HEAD = ("NAME", "SIZE", "WEIGHTS", "TASK", "CHANGED")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the table. Raises StartError."""
    _, words, options = own(
        parser("list", "--model_repository_path DIR: of another directory than the user's cache"), argv
    )
    if words:
        raise StartError(f"list takes no {words[0]}")
    repository = Path(with_repository(parse(["list", *options], environ)).model_repository_path)
    names = servable(repository)
    if names:
        print(table([HEAD, *(_row(repository, name) for name in names)]))
    else:
        print(f"lean_ovms: there is no model in {repository}", file=sys.stderr)
    return exit_status.OK


def _row(repository: Path, name: str) -> tuple[str, ...]:
    path = repository / name
    changed = time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime))
    gguf = "GGUF" if any(path.rglob("*.gguf")) else ""
    return name, human_size(size(path)), weights.precision(path) or gguf, task.detect(path), changed


def size(path: Path) -> int:
    """Returns the bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
