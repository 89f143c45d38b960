"""Files that others read while we write them: whole before and whole after, whatever happens in between."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

FRESH_MODE = 0o644


def write(path: Path, text: str) -> None:
    """Replace the text of path at once, keeping its permissions. Raises OSError."""
    place = path.resolve()  # what a symbolic link points to is replaced, not the link
    with contextlib.suppress(FileNotFoundError):
        if place.read_bytes() == text.encode():
            return
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), _mode(place))
            os.fsync(file.fileno())
        os.replace(name, place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mode(place: Path) -> int:
    try:
        return stat.S_IMODE(place.stat().st_mode)
    except FileNotFoundError:
        return FRESH_MODE


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Nobody else who calls this for directory is in it at the same time: read, change and write between. Raises
    OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then the last writer wins
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
