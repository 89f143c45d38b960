"""The files of a model directory that show which task its model has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .util import files

NETWORK, NETWORK_HEAD = "openvino_model.xml", 1 << 16
"""A network, and as many bytes of it as have the layers of its inputs."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files that exporters leave in a model directory, as far as they show the model's task."""

    path: Path
    """The directory."""
    config: dict[str, Any]
    """The content of config.json."""
    architectures: list[str]
    """The architectures that config.json names."""
    modules: list[str]
    """The types in modules.json of sentence-transformers."""

    @classmethod
    def of(cls, path: Path) -> ModelFiles:
        """Reads the files of a directory. Those that are missing or not valid count as empty."""
        config = files.read_object(path / "config.json")
        names = [name for name in config.get("architectures") or () if isinstance(name, str)]
        modules = files.read_or_none(path / "modules.json")
        kinds = [entry.get("type") for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
        return cls(path, config, names, [kind for kind in kinds if isinstance(kind, str)])

    def is_of(self, *ends: str) -> bool:
        """Returns whether an architecture's name ends so."""
        return any(name.endswith(ends) for name in self.architectures)

    def has(self, name: str) -> bool:
        """Returns whether there is a file of this name."""
        return (self.path / name).is_file()

    def json(self, name: str) -> dict[str, Any]:
        """Returns the object in a JSON file; empty without a valid one."""
        return files.read_object(self.path / name)

    def network_head(self) -> bytes:
        """Returns the beginning of the network's file; empty without one."""
        try:
            with open(self.path / NETWORK, "rb") as file:
                return file.read(NETWORK_HEAD)
        except OSError:
            return b""
