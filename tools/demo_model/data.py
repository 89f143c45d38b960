"""Reads the lists of words and sentences: data/NAME.json has those of the module NAME."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("data")


def data_of(module: str) -> dict[str, Any]:
    """Returns the constants of a module by name, in the order of the file.

    Arrays become tuples, except those within objects.
    """
    found: dict[str, Any] = json.loads((FOLDER / f"{module}.json").read_text("utf-8"))
    return {name: _frozen(value) for name, value in found.items()}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
