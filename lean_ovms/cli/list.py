"""`lean-ovms list`: the models of the repository with their size, precision, task and date."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..composition import compose
from ..errors import StartError
from ..repository import model_dir, weights
from ..repository.listing import servable
from ..server import exit_status
from ..util.sizes import human_size
from .arguments import own, parse
from .command_table import add_json, parser, print_json, table
from .commands import with_repository

HEAD = ("NAME", "SIZE", "WEIGHTS", "TASK", "CHANGED")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the table. Raises StartError."""
    given, words, options = own(
        add_json(parser("list", "--model_repository_path DIR: of another directory than the user's cache")), argv
    )
    if words:
        raise StartError(f"list takes no {words[0]}")
    repository = Path(with_repository(parse(["list", *options], environ)).model_repository_path)
    names = servable(repository)
    if given.json:
        print_json([_facts(repository, name) for name in names])
    elif names:
        rows = [_facts(repository, name) for name in names]
        print(table([HEAD, *(tuple(map(str, (row | {"size": human_size(row["size"])}).values())) for row in rows)]))
    else:
        print(f"lean_ovms: there is no model in {repository}", file=sys.stderr)
    return exit_status.OK


def _facts(repository: Path, name: str) -> dict[str, Any]:
    """Returns what the table says of a model, in its order; the size in bytes."""
    path = repository / name
    changed = time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime))
    forms = (row.name for row in compose().formats if any(path.rglob(f"*{row.suffix}")))
    precision = weights.precision(path) or next(forms, "")
    return {
        "name": name,
        "size": size(path),
        "weights": precision,
        "task": model_dir.detect_task(path),
        "changed": changed,
    }


def size(path: Path) -> int:
    """Returns the bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
