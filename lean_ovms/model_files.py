"""Reads the files of a model directory that show which task its model has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .util import files

NETWORK, NETWORK_HEAD = "openvino_model.xml", 1 << 16
"""A network, and as many bytes of it as have the layers of its inputs."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The contents of the files in a model directory that reveal the model's task."""

    path: Path
    """The directory."""
    config: dict[str, Any]
    """The content of config.json."""
    architectures: list[str]
    """The architectures that config.json names."""
    modules: list[str]
    """The module types in modules.json, a file of sentence-transformers."""

    @classmethod
    def of(cls, path: Path) -> ModelFiles:
        """Reads the files of a directory. Missing or invalid files count as empty."""
        config = files.read_object(path / "config.json")
        names = [name for name in config.get("architectures") or () if isinstance(name, str)]
        modules = files.read_or_none(path / "modules.json")
        kinds = [entry.get("type") for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
        return cls(path, config, names, [kind for kind in kinds if isinstance(kind, str)])

    def is_of(self, *ends: str) -> bool:
        """Returns whether the name of an architecture in config.json has one of these endings."""
        return any(name.endswith(ends) for name in self.architectures)

    def has(self, name: str) -> bool:
        """Returns whether the directory has a file of this name."""
        return (self.path / name).is_file()

    def json(self, name: str) -> dict[str, Any]:
        """Returns the object in a JSON file; {} if the file is missing or not valid."""
        return files.read_object(self.path / name)

    def network_head(self) -> bytes:
        """Returns the beginning of the network's XML file; empty if there is none."""
        try:
            with open(self.path / NETWORK, "rb") as file:
                return file.read(NETWORK_HEAD)
        except OSError:
            return b""
