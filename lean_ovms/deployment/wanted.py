"""Which models a server should serve, from its options: one named on the command line, or those of a config file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..config import Config
from ..errors import StartError

Stat = tuple[int, int, int] | None
"""What tells that a file has changed; None: there is none."""


def stat(path: Path) -> Stat:
    """Modification time, size and inode of a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A model that should be served, with its options.

    problem: why it cannot be. stamp: differs when the model has to be loaded again although its options are the same.
    """

    config: Config
    problem: StartError | None = None
    stamp: str = ""

    @property
    def name(self) -> str:
        """Its name in the API."""
        return self.config.served_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """All models that should be served, in the order of the model list. files: what was read, as it was before."""

    models: tuple[Wanted, ...]
    files: dict[Path, Stat] = field(default_factory=dict)


def wish(config: Config) -> Wish:
    """What these options ask for. Raises StartError when they, or the config file, cannot be understood."""
    return Wish(models=(Wanted(config=config),))
