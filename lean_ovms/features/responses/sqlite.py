"""SQLite as the response store's database: a file that processes of one machine can share, or memory.

A damaged file is renamed at the start. Disk space is reserved in a second file, so that deleting works on a full disk.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from ...errors import StartError, StoreFailure, StoreFull
from ...util.files import open_regular, take_lock
from .connection import Connection, Rows, StoreUnavailable

logger = logging.getLogger("lean_ovms.responses")

MEMORY = ":memory:"

BUSY_TIMEOUT_S = 10.0
"""Longest wait for other servers' transactions; then requests fail with 503."""

BUSY, LOCKED = 5, 6
"""SQLite's error codes; the sqlite3 module names them from Python 3.11 on."""

FULL = "database or disk is full"
"""SQLite's message."""

MAGIC = b"SQLite format 3\0"
VERSION_AT = 60
"""Offset of user_version, 4 bytes (https://www.sqlite.org/fileformat.html#the_database_header)."""
SIDE_FILES = ("", "-wal", "-shm")
RESERVE_BYTES = 1 << 20
"""The bytes that are reserved besides those by which the file will grow. Deleting takes space on the disk before it
frees any, since each page that changes is first written to the log."""


class Sqlite(Connection):
    """A connection to an SQLite file, created if missing, or to memory for "". Raises OSError, sqlite3.Error."""

    number = "INTEGER PRIMARY KEY AUTOINCREMENT"

    def __init__(self, path: str) -> None:
        if path:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # conversations are private
        self._path = path
        self._lock = -1  # the file descriptor of this server's lock
        self._server = ""
        self._connection = sqlite3.connect(path or MEMORY, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._to_wal()
            self._connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power failure
        except BaseException:
            self._connection.close()
            raise

    def _to_wal(self) -> None:
        """Switches to write-ahead logging, which allows readers beside a writer.

        It is tried again while another server opens or closes the file, which makes it fail briefly.
        """
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not _is_locked(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return self._connection.execute(sql, values)

    def begin(self, write: bool) -> None:
        self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def version(self) -> int:
        version = self.one("PRAGMA user_version")
        if not version and self.one("SELECT 1 FROM sqlite_master"):
            raise StoreFailure("the file contains other tables")
        return int(version)

    def set_version(self, version: int) -> None:
        self._connection.execute(f"PRAGMA user_version = {version:d}")

    def hold(self, server: str) -> None:
        if self._path:
            self._server, name = server, self._lock_file(server)
            locked = False
            while not locked or not os.path.exists(name):  # another server may look at it, and remove it as a leftover
                if self._lock >= 0:
                    os.close(self._lock)
                self._lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                try:
                    locked = take_lock(self._lock)
                except OSError:  # without support for locks, `holds` never finds a server that has ended
                    locked = True
            for left in glob.glob(f"{glob.escape(self._path)}-server-*"):
                self.holds(left.rpartition("-")[2])

    def holds(self, server: str) -> bool:
        if not self._path:
            return True  # a database in memory has only one server
        try:
            descriptor = os.open(self._lock_file(server), os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            if not take_lock(descriptor, shared=True):
                return True
            with contextlib.suppress(OSError):  # the server's process was killed
                os.unlink(self._lock_file(server))
            return False
        except OSError:  # the file system does not support locks
            return True
        finally:
            os.close(descriptor)

    def _lock_file(self, server: str) -> str:
        return f"{self._path}-server-{server}"

    def close(self) -> None:
        self._connection.close()
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._lock_file(self._server))
            os.close(self._lock)
            self._lock = -1

    @staticmethod
    def failure(error: Exception, path: str) -> tuple[StoreFailure, str]:
        if isinstance(error, sqlite3.Error) and _is_locked(error):
            return StoreUnavailable("the response store is busy"), str(error)
        reason = (error.strerror or "an error") if isinstance(error, OSError) else str(error)
        return (StoreFull if reason == FULL else StoreFailure)(f"the response store failed: {reason}"), str(error)

    # --- the disk ---

    def keep_reserve(self) -> None:
        """Reserves disk space in a second file. Raises an error with the text FULL if the disk does not have enough.

        At least the bytes are reserved by which the database file will grow when its write-ahead log is copied into it:
        without them, the log could never be emptied on a full disk. More is reserved if the disk has it.
        """
        if not self._path:
            return
        size = int(self.one("PRAGMA page_count")) * int(self.one("PRAGMA page_size"))
        growth = max(0, size - os.stat(self._path).st_size)
        wanted = -(-growth // RESERVE_BYTES) * RESERVE_BYTES + RESERVE_BYTES
        kept = 0
        with contextlib.suppress(OSError):
            kept = os.stat(self._reserve).st_size
        if kept == wanted:
            return
        try:
            descriptor = os.open(self._reserve, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, wanted)
                kept = wanted
            finally:
                os.ftruncate(descriptor, kept)
                os.close(descriptor)
        except OSError:
            if kept < growth:
                raise sqlite3.OperationalError(FULL) from None

    @property
    def _reserve(self) -> str:
        return f"{self._path}-reserve"

    def use_reserve(self, deletes: bool) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._reserve)
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            # Debian's SQLite overwrites deleted data in the log, for which there may be no space.
            self._connection.execute("PRAGMA secure_delete = FAST")
            if not deletes:
                self.keep_reserve()


def _is_locked(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # available from Python 3.11 on
    return "is locked" in str(error) if code is None else code & 0xFF in (BUSY, LOCKED)


def set_aside_if_damaged(path: str, newest: int, *, strict: bool) -> None:
    """Renames the file of a store, and its log, to PATH.damaged-TIME if SQLite finds damage in it.

    The next connection makes a new file. A file that is not a store, or that a newer version has written, is left as it
    is, and is an error later. The whole file is read, which takes 0.3 s for 256 MB.

    Args:
        path: The file.
        newest: The newest version of a store that this server reads.
        strict: Whether damage is an error, and the file is not renamed.

    Raises:
        StartError: The file is damaged, and strict is set.
    """
    if not _is_store(path, newest):
        return
    problem = _problem(path)
    if not problem:
        return
    if strict:
        raise StartError(
            f"--response_store {path} is damaged: {problem}; without --response_store_strict, it would be renamed"
        )
    aside = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    for suffix in SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, aside + suffix)
    logger.error(
        "the response store %s was damaged (%s); it was renamed to %s, and a new, empty one was created",
        path,
        problem,
        aside,
    )


def _is_store(path: str, newest: int) -> bool:
    try:
        with open_regular(path) as file:
            head = file.read(VERSION_AT + 4)
    except OSError:  # the file is missing, or cannot be opened
        return False
    return head.startswith(MAGIC) and 0 < int.from_bytes(head[VERSION_AT:], "big") <= newest


def _problem(path: str) -> str:
    """Returns the first problem that SQLite finds in the file, or "" if it finds none."""
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        damaged = ("malformed", "not a database")  # names of the error codes are available only from Python 3.11 on
        return str(error) if any(text in str(error) for text in damaged) else ""
    finally:
        connection.close()
    return "" if found == "ok" else " ".join(str(found).split())
