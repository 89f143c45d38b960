"""`lean-ovms list`: prints the models of the repository with their size, precision, task and date."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cli.arguments import own, parse
from ...cli.commands import add_json, parser, print_json, table
from ...composition import compose
from ...config import Config
from ...errors import ExitStatus, StartError
from ...repository import model_config, model_dir, model_file
from ...util.sizes import human_size
from ..deployment.desired import repository_of
from ..deployment.listing import servable

HEAD = ("NAME", "SIZE", "WEIGHTS", "TASK", "CHANGED")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints the table. Raises StartError."""
    given, words, options = own(
        add_json(parser("list", "--model_repository_path DIR: of another directory than the user's cache")), argv
    )
    if words:
        raise StartError(f"list does not accept {words[0]}")
    repository = repository_of(parse(options, environ))
    found = servable(repository)
    if given.json:
        print_json([_facts(repository, name) for name in found])
    elif found:
        rows = [_facts(repository, name) for name in found]
        print(table([HEAD, *(tuple(map(str, (row | {"size": human_size(row["size"])}).values())) for row in rows)]))
    else:
        print(f"lean_ovms: there is no model in {repository}", file=sys.stderr)
    return ExitStatus.OK


def names(config: Config) -> None:
    """Prints only the names, as OVMS does."""
    repository = repository_of(config)
    found = servable(repository)
    for path in found:
        print(path)
    if not found:
        print(f"lean_ovms: there is no model in {repository}", file=sys.stderr)


def _facts(repository: Path, name: str) -> dict[str, Any]:
    """Returns the columns of a model in the order of the table; the size is in bytes."""
    path = repository / name
    changed = time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime))
    forms = (row.name for row in compose().formats if path.suffix == row.suffix or any(path.rglob(f"*{row.suffix}")))
    precision = model_config.precision(path) or next(forms, "")
    files = model_dir.single_files(path)
    return {
        "name": name,
        "size": size(path),
        "weights": precision,
        "task": model_dir.detect_task(files[0] if len(files) == 1 else path),
        "changed": changed,
    }


def size(path: Path) -> int:
    """Returns the total size in bytes of a model's files: all below a directory, or the parts of a file."""
    files = (file for part in model_file.parts(path) for file in (part, *part.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file())
