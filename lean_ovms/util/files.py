"""Reads files that an operator names or replaces: regular files only, opened without blocking.

Opening a FIFO would wait for a writer forever, in a thread for which a shutdown would wait; a device may have no end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
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


def opener(path: str, flags: int) -> int:
    """Opens a regular file as the `opener` of `open`. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
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


def read(path: Path) -> Any:
    """Returns the value in a JSON file. Raises OSError, or ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(read_bytes(path))
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
