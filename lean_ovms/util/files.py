"""Reading files that an operator names or replaces: regular ones only, opened without waiting.

Opening a FIFO waits for a writer, for ever, and in a thread that a shutdown waits for; a device may never end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

FileStat = tuple[int, int, int] | None
"""Modification time (ns), size and inode, to detect a changed file; None: no such file."""
NOT_REGULAR = "it is not a regular file"


def file_stat(path: Path) -> FileStat:
    """Returns the FileStat of a file; None also where it may not be read."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: no file can have such a name
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def exists(path: Path) -> bool:
    """Returns whether there is such a file or directory. Raises OSError where that cannot be told.

    Path.exists() of Python 3.14 says then that there is none.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    return True


def open_regular(path: Path | str) -> BinaryIO:
    """Opens the file to read it. Raises OSError, also for what is no regular file, and ValueError for an impossible
    name."""
    return open(path, "rb", opener=opener)


def opener(path: str, flags: int) -> int:
    """Opens a file for `open`, whose opener it is, as open_regular does. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    try:
        require_regular(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(descriptor: int, path: Path | str) -> None:
    """Checks that a descriptor is that of a regular file.

    Args:
        descriptor: The descriptor.
        path: The path of the file, for the error.

    Raises:
        OSError: It is not.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))


OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""The permissions by which others than the owner write."""


def is_private_directory(found: os.stat_result) -> bool:
    """Returns whether it is a directory of this user, in which nobody else may write."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS


def read_bytes(path: Path | str) -> bytes:
    """Returns a file's bytes. Raises as open_regular."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path | str, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Returns a file's text, its line ends as "\\n". Raises as open_regular, and UnicodeDecodeError."""
    text = read_bytes(path).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read(path: Path) -> Any:
    """Returns the value in the file. Raises OSError, or ValueError for a text that is not JSON or nested too deeply."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in the file; {} if the file is missing, cannot be read, or holds something else."""
    value = read_or_none(path)
    return value if isinstance(value, dict) else {}


def read_or_none(path: Path) -> Any:
    """Returns the value in the file; None if the file is missing, or cannot be read. Others report that."""
    try:
        return read(path)
    except (OSError, ValueError):
        return None
