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
"""Kept beside the growth of the file. Deleting takes space before it gives any: the log has each page that changes."""


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


def keep_reserve(path: str, growth: int) -> bool:
    """Take space for what `free_reserve` makes room for; whether the disk has enough.

    growth: the bytes by which the file at path will grow when its write-ahead log is copied into it. They must be there
    on a full disk, too, or the log could never begin again. The rest is taken if the disk has it.
    """
    reserve = f"{path}-reserve"
    wanted = -(-max(growth, 0) // RESERVE_BYTES) * RESERVE_BYTES + RESERVE_BYTES
    kept = 0
    with contextlib.suppress(OSError):
        kept = os.stat(reserve).st_size
    if kept == wanted:
        return True
    try:
        descriptor = os.open(reserve, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return kept >= growth
    try:
        os.posix_fallocate(descriptor, 0, wanted)
        os.ftruncate(descriptor, wanted)
        return True
    except OSError:
        os.ftruncate(descriptor, kept)
        return kept >= growth
    finally:
        os.close(descriptor)


def free_reserve(path: str) -> None:
    """Give the space back to the disk."""
    with contextlib.suppress(OSError):
        os.unlink(f"{path}-reserve")
