"""The file of --prewarm: bodies of requests whose prompts are computed when a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import BadRequest, WrongOptions
from ...types import Json
from ...util import atomic_file, files
from ...util.files import read_bytes

MOST_BODIES = 256
"""Bodies up to which a file grows by requests."""
LINES = ".jsonl"
"""Suffix of a file with one body in each line."""


def read(name: str) -> list[Any]:
    """Returns the entries of a file: those of its list, its only body, or those of its lines. Raises WrongOptions."""
    path = Path(name)
    try:
        if path.suffix == LINES:
            return [json.loads(line) for line in read_bytes(path).splitlines() if line.strip()]
        value = files.read(path)
    except OSError as error:
        raise WrongOptions(f"--prewarm {name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise WrongOptions(f"--prewarm {name}: {error}") from None
    return value if isinstance(value, list) else [value]


def add(name: str, body: Json) -> int:
    """Adds a body that the file does not have. Returns how many it has. Raises BadRequest, WrongOptions and OSError."""
    path = Path(name)
    with atomic_file.lock(path.resolve().parent):
        bodies = read(name)
        if body in bodies:
            return len(bodies)
        if len(bodies) >= MOST_BODIES:
            raise BadRequest(f"the file of --prewarm has {MOST_BODIES} bodies; no more are added")
        bodies.append(body)
        rows = [json.dumps(one, ensure_ascii=False) for one in bodies]
        text = "\n".join(rows) if path.suffix == LINES else "[\n" + ",\n".join(rows) + "\n]"
        atomic_file.write(path, text + "\n")
        return len(bodies)
