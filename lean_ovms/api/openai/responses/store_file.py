"""The file of a SQLite store on the disk: set aside when it is damaged, and space kept to delete on a full disk."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time

from ....errors import StartError
from ....util.files import open_regular

logger = logging.getLogger("lean_ovms.responses")

MAGIC = b"SQLite format 3\0"
VERSION_AT = 60
"""Offset of user_version, 4 bytes (https://www.sqlite.org/fileformat.html#the_database_header)."""
SIDE_FILES = ("", "-wal", "-shm")
RESERVE_BYTES = 1 << 20
"""Deleting takes space before it gives any: the write-ahead log has a copy of each page that changes."""


def set_aside_if_damaged(path: str, newest: int, *, strict: bool) -> None:
    """Rename the file to PATH.damaged-TIME, with its log, if SQLite finds damage in it; the next connection makes one.

    Only a file that begins as a store does, of a version up to newest: a foreign file stays, and is an error later.
    strict: raise StartError instead. Reads the whole file: 0.3 s for 256 MB.
    """
    if not _is_store(path, newest):
        return
    problem = _problem(path)
    if not problem:
        return
    if strict:
        raise StartError(f"--response_store {path} is damaged: {problem}; not strict, it would be set aside")
    aside = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    for suffix in SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, aside + suffix)
    logger.error("the response store %s is damaged (%s): it is now %s, and a new one is empty", path, problem, aside)


def _is_store(path: str, newest: int) -> bool:
    try:
        with open_regular(path) as file:
            head = file.read(VERSION_AT + 4)
    except OSError:  # missing, or an error when it is opened
        return False
    return head.startswith(MAGIC) and 0 < int.from_bytes(head[VERSION_AT:], "big") <= newest


def _problem(path: str) -> str:
    """What SQLite finds wrong with the file, "" for nothing."""
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        damaged = ("malformed", "not a database")  # the codes have names from Python 3.11 on only
        return str(error) if any(text in str(error) for text in damaged) else ""
    finally:
        connection.close()
    return "" if found == "ok" else " ".join(str(found).split())


class Reserve:
    """A file beside the store whose space is freed when the disk is full."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-reserve"
        self._kept = False

    def keep(self) -> None:
        """Take the space, if the disk has it and it is not taken."""
        if self._kept:
            return
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            self._kept = True
        except OSError:
            self._unlink()
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give the space back to the disk."""
        self._kept = False
        self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
