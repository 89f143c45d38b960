"""Replaces a file atomically: a reader sees either the old or the new text, even after a crash."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .files import read_bytes, take_lock

DEFAULT_MODE = 0o644


def write(path: Path, text: str, mode: int = DEFAULT_MODE) -> None:
    """Replaces the text of a file atomically, keeping its permissions; a new one gets `mode`. Raises OSError."""
    target = path.resolve()  # a symbolic link stays, the file behind it is replaced
    with contextlib.suppress(FileNotFoundError):
        if read_bytes(target) == text.encode():
            return
        mode = stat.S_IMODE(target.stat().st_mode)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Holds an exclusive lock on a directory in the `with` block, to read, change and write. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the last writer wins
            take_lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)
