"""Adds models to a config.json and removes them, leaving everything else in the file unchanged.

Both are idempotent. A server that watches the file sees either the old or the new content, never a part.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...config import Config
from ...errors import StartError
from ...observability.logging import safe
from ...util import atomic_file
from . import config_file
from .config_file import FROM_ENTRY, MODEL_LISTS


def add(path: Path, name: str, model_path: str, options: dict[str, Any] | None = None) -> bool:
    """Adds a model to a file, which is created if it does not exist.

    Args:
        path: The config.json.
        name: The model's name.
        model_path: The model's path as it is written; a relative path is relative to the file's directory.
        options: Further members of the model's entry.

    Returns:
        Whether the model was added, because it was not in the file yet.

    Raises:
        StartError: The file cannot be read or written, or has another model of this name.
    """
    entry = {"name": name, "base_path": model_path, **(options or {})}

    def change(root: dict[str, Any]) -> None:
        found = [other for other in _entries(root) if other.get("name") == name]
        if found and entry not in found:
            raise StartError(f"{path} already has a model {safe(name)} with other options; remove it first")
        if not found:
            root.setdefault(MODEL_LISTS[0], []).append({"config": entry})

    return _edit(path, change, creates=True)


def remove(path: Path, name: str) -> bool:
    """Removes the models of this name from the file; returns False if there are none. Raises StartError."""

    def change(root: dict[str, Any]) -> None:
        for key in MODEL_LISTS:
            if key in root:
                root[key] = [item for item in root[key] if _entry(item).get("name") != name]

    return _edit(path, change)


def _edit(path: Path, change: Callable[[dict[str, Any]], None], *, creates: bool = False) -> bool:
    """Changes the JSON object in a file.

    Args:
        path: The config.json.
        change: Changes the object in place.
        creates: Whether a missing file is created.

    Returns:
        Whether the object has changed.

    Raises:
        StartError: The file cannot be read or written.
    """
    try:
        if creates:
            path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.lock(path.parent):
            root = _load(path) if path.exists() or not creates else {MODEL_LISTS[0]: []}
            before = deepcopy(root)
            change(root)
            if root != before:
                atomic_file.write(path, json.dumps(root, indent=4, ensure_ascii=False) + "\n")
    except OSError as error:
        raise StartError(f"{path} cannot be changed: {error.strerror}") from None
    return root != before


def names(path: Path) -> list[str]:
    """Returns the names of the models in the file. Raises StartError."""
    return [str(entry.get("name", "")) for entry in _entries(_load(path))]


def options_of(config: Config) -> dict[str, Any]:
    """Returns the options for an entry: the model's that are not the default, with JSON texts as objects."""
    changed = {name: value for name, value in config_file.model_options(config).items() if name not in FROM_ENTRY}
    return {name: _as_object(value) if name.endswith("_config") else value for name, value in changed.items()}


def relative_path(directory: Path, path: Path) -> str:
    """Returns a path as a config.json in `directory` names it: relative if inside, so that both can be moved."""
    absolute, base = path.absolute(), directory.absolute()
    return str(absolute.relative_to(base)) if absolute.is_relative_to(base) else str(absolute)


def _as_object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _entries(root: dict[str, Any]) -> list[dict[str, Any]]:
    return [_entry(item) for key in MODEL_LISTS for item in root.get(key, [])]


def _entry(item: Any) -> dict[str, Any]:
    """Returns the object of a model, which is one level deeper in the first list."""
    inner = item.get("config", item) if isinstance(item, dict) else {}
    return inner if isinstance(inner, dict) else {}


def _load(path: Path) -> dict[str, Any]:
    try:
        root = config_file.load(path)
    except StartError as error:
        raise StartError(f"{error} (nothing was changed)") from None
    if not isinstance(root, dict) or not all(isinstance(root.get(key, []), list) for key in MODEL_LISTS):
        expected = f"it has no object with {MODEL_LISTS[0]}"
        raise StartError(f"{path} is not a configuration file: {expected} (nothing was changed)")
    return root
