"""Reads files that an operator names or replaces: regular files only, opened without blocking.

Opening a FIFO would wait for a writer forever, in a thread for which a shutdown would wait; a device may have no end.
ModelFiles reads those of a model directory that show which task its model has.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

FileStat = tuple[int, int, int] | None
"""The modification time (ns), size and inode of a file, which show a change; None if there is no such file."""
NOT_REGULAR = "it is not a regular file"


def file_stat(path: Path) -> FileStat:
    """Returns the FileStat of a file; None also if it may not be read."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: no file can have such a name
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def exists(path: Path) -> bool:
    """Returns whether a file or directory exists. Raises OSError if unknown, unlike Path.exists()."""
    try:
        path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    return True


def open_regular(path: Path | str) -> BinaryIO:
    """Opens a regular file for reading. Raises OSError, or ValueError for an impossible name."""
    return open(path, "rb", opener=opener)


def opener(path: str, flags: int, mode: int = 0o666) -> int:
    """Opens a regular file, a new one with `mode`, as the `opener` of `open`. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    try:
        require_regular(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(descriptor: int, path: Path | str) -> None:
    """Raises OSError, naming the path, if a descriptor belongs to anything but a regular file."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))


OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""The permissions by which anyone but the owner may write."""


def is_private_directory(found: os.stat_result) -> bool:
    """Returns whether a path's status is that of a directory of this user in which nobody else may write."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS


def take_lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Locks an open file or directory until it is closed, or the process has ended. Returns whether it is locked now.

    Args:
        descriptor: The descriptor, by whose closing the lock is released.
        shared: Whether others may have a shared lock at the same time; otherwise nobody else may have one.
        wait: Whether to wait until nobody has a lock that excludes this one, instead of returning False.

    Raises:
        OSError: The file system does not support locks.
    """
    import fcntl  # POSIX only

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_bytes(path: Path | str) -> bytes:
    """Returns the content of a regular file. Raises OSError, or ValueError for an impossible name."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path | str, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Returns the text of a regular file with Unix line ends. Raises OSError, ValueError and UnicodeDecodeError.

    Args:
        path: The path of the file.
        encoding: The encoding of the text.
        errors: The treatment of invalid bytes, as in bytes.decode.
    """
    text = read_bytes(path).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object, as the `object_pairs_hook` of json.loads. Raises ValueError for a repeated name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object contains the same name twice")
    return found


def read(path: Path, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Returns the value in a JSON file, whose objects `hook` may make or refuse. Raises OSError and ValueError."""
    try:
        return json.loads(read_bytes(path), object_pairs_hook=hook)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if the file is missing, cannot be read, or contains something else."""
    value = read_or_none(path)
    return value if isinstance(value, dict) else {}


def read_or_none(path: Path) -> Any:
    """Returns the value in a JSON file; None if the file is missing or cannot be read, which other code reports."""
    try:
        return read(path)
    except (OSError, ValueError):
        return None


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
        config = read_object(path / "config.json")
        names = [name for name in config.get("architectures") or () if isinstance(name, str)]
        modules = read_or_none(path / "modules.json")
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
        return read_object(self.path / name)
