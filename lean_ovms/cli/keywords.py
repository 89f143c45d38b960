"""Makes a Config of a Python program's keyword arguments.

The keywords are converted to flags and parsed as such, so that names and values mean the same.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ..config import Config, listed
from .arguments import other_flags, parse, parser


def of_keywords(model: str = "", /, **options: Any) -> Config:
    """Returns the Config of keyword arguments. Flags of other servers are understood, too.

    Args:
        model: The directory of a model, or its name on a hub.
        **options: The options by name; None means that an option is not set.

    Raises:
        StartError: An option is wrong.
    """
    argv = [model] if model else []
    rows = {row.name: row for row in listed()}
    flags = parser()._option_string_actions
    for name, value in options.items():
        row = rows.get(name)
        if value is None or (row is not None and value == row.default and type(value) is type(row.default)):
            continue
        if isinstance(value, list | tuple) and row is not None and row.metadata["several"]:
            value = " ".join(value)
        if row is not None or not isinstance(value, bool):
            typed = os.fspath(value) if isinstance(value, str | os.PathLike) else json.dumps(value)
            argv.append(f"--{name}={typed}")
        elif value or f"--{name}" not in flags:
            argv.append(f"--{name}")
        elif f"--no_{name}" in flags and name not in other_flags().ignored:
            argv.append(f"--no_{name}")
    return parse(argv, {})
