"""The file of --prewarm, with the bodies of requests whose prompts are computed when a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import BadRequest, WrongOptions
from ...types import Json
from ...util import atomic_file, files
from ...util.files import read_bytes

MOST_BODIES = 256
"""The number of bodies to which requests may extend a file."""
LINES = ".jsonl"
"""The suffix of a file with one body per line."""


def read(name: str) -> list[Any]:
    """Returns the bodies in a file, which is a list, a single body, or one body per line. Raises WrongOptions."""
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
    """Adds a body that the file lacks. Returns the number of bodies. Raises BadRequest, WrongOptions, OSError."""
    path = Path(name)
    with atomic_file.lock(path.resolve().parent):
        bodies = read(name)
        if body in bodies:
            return len(bodies)
        if len(bodies) >= MOST_BODIES:
            raise BadRequest(f"the file of --prewarm already has {MOST_BODIES} requests, its limit")
        bodies.append(body)
        rows = [json.dumps(one, ensure_ascii=False) for one in bodies]
        text = "\n".join(rows) if path.suffix == LINES else "[\n" + ",\n".join(rows) + "\n]"
        atomic_file.write(path, text + "\n")
        return len(bodies)
