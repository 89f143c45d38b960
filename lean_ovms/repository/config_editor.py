"""Adding models to a config.json and removing them: what else is in the file stays as it is.

Both may be said twice. A server that watches the file sees the old one or the new one, never half of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import StartError
from ..observability.logging import safe
from . import atomic_file

LIST, OTHER_LIST = "model_config_list", "mediapipe_config_list"
"""Where models are added, and where older files have graphs."""


def add(path: Path, name: str, model_path: str, options: dict[str, Any] | None = None) -> bool:
    """Have the model in the file, which is made if there is none; whether that changed it.

    model_path: written as given; a relative one begins at the file's directory. Raises StartError, also when the name
    stands there for something else.
    """
    entry = {"name": name, "base_path": model_path, **(options or {})}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.alone(path.parent):
            root = _read(path) if path.exists() else {LIST: []}
            found = [one for one in _entries(root) if one.get("name") == name]
            if entry in found:
                return False
            if found:
                raise StartError(f"{path} has a model {safe(name)} already, with other options: remove it first")
            root.setdefault(LIST, []).append({"config": entry})
            _write(path, root)
    except OSError as error:
        raise StartError(f"{path} cannot be changed: {error.strerror}") from None
    return True


def remove(path: Path, name: str) -> bool:
    """Have no model of that name in the file; whether that changed it. Raises StartError."""
    try:
        with atomic_file.alone(path.parent):
            root = _read(path)
            before = len(_entries(root))
            for key in (LIST, OTHER_LIST):
                if key in root:
                    root[key] = [item for item in root[key] if _entry(item).get("name") != name]
            if len(_entries(root)) == before:
                return False
            _write(path, root)
    except OSError as error:
        raise StartError(f"{path} cannot be changed: {error.strerror}") from None
    return True


def names(path: Path) -> list[str]:
    """The models that the file names. Raises StartError."""
    return [str(entry.get("name", "")) for entry in _entries(_read(path))]


def _entries(root: dict[str, Any]) -> list[dict[str, Any]]:
    return [_entry(item) for key in (LIST, OTHER_LIST) for item in root.get(key, [])]


def _entry(item: Any) -> dict[str, Any]:
    """A model's object: in the first list it stands one level deeper."""
    inner = item.get("config", item) if isinstance(item, dict) else {}
    return inner if isinstance(inner, dict) else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        root = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StartError(f"there is no configuration file at {path}") from None
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not valid JSON, nothing was changed: {error}") from None
    if not isinstance(root, dict) or not all(isinstance(root.get(key, []), list) for key in (LIST, OTHER_LIST)):
        raise StartError(f"{path} is not a configuration file, nothing was changed: it has no object with {LIST}")
    return root


def _write(path: Path, root: dict[str, Any]) -> None:
    atomic_file.write(path, json.dumps(root, indent=4, ensure_ascii=False) + "\n")
