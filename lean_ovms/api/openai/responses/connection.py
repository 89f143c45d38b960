"""The interface of a database connection, and SQLite: a file that processes of one machine share, or memory.

PostgreSQL is in postgres.py. SQL is written for both: `?` marks a value; `{number}`, `{blob}` and similar names stand
for column types that the two name differently.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ....errors import StoreFailure, StoreUnavailable
from . import store_file

MEMORY = ":memory:"

BUSY_TIMEOUT_S = 10.0
"""Longest wait for other servers' transactions; then requests fail with 503."""

BUSY, LOCKED = 5, 6
"""SQLite's error codes; the sqlite3 module names them from Python 3.11 on."""

FULL = "database or disk is full"
"""SQLite's message. It repeats for every response until space is freed, so it is logged without a traceback."""


class Rows(Protocol):
    """The result of a statement. rowcount: how many rows it changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class DatabaseConnection(Protocol):
    """One connection to a database. types: names for the schema's column types."""

    types: Mapping[str, str]

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run one statement. Raises the errors of the database's library."""

    def begin(self, write: bool) -> None:
        """Begin a transaction. Only one write transaction runs at a time; readers may run beside it."""

    def version(self) -> int:
        """The version of the tables, 0 for an empty database. Raises StoreFailure for foreign tables."""

    def set_version(self, version: int) -> None:
        """Store the version of the tables."""

    def now(self) -> float:
        """Seconds since 1970 by a clock that all servers on this database share."""

    @property
    def lost(self) -> bool:
        """Whether the connection is broken and must be replaced."""

    def keep_reserve(self) -> None:
        """Keep space on the disk for `free_reserve`, before a commit that adds data. Raises an error with FULL."""

    def free_reserve(self) -> None:
        """Make space on a full disk."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class Sqlite:
    """A file, created if it does not exist; memory if path is empty. Raises OSError and sqlite3.Error."""

    types: Mapping[str, str] = {
        "number": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "integer": "INTEGER",
        "real": "REAL",
        "blob": "BLOB",
        "compact": "WITHOUT ROWID",
    }
    lost = False

    def __init__(self, path: str) -> None:
        if path:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # conversations are private
        self._path = path
        self._connection = sqlite3.connect(path or MEMORY, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._to_wal()
            self._connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power failure
        except BaseException:
            self._connection.close()
            raise

    def _to_wal(self) -> None:
        """Allow readers beside one writer. Fails briefly while another server opens or closes the file."""
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
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if not version and self._connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise StoreFailure("the file contains other tables")
        return int(version)

    def set_version(self, version: int) -> None:
        self._connection.execute(f"PRAGMA user_version = {version:d}")

    def now(self) -> float:
        return time.time()

    def keep_reserve(self) -> None:
        if not self._path:
            return
        [pages] = self._connection.execute("PRAGMA page_count").fetchone()
        [page_bytes] = self._connection.execute("PRAGMA page_size").fetchone()
        if not store_file.keep_reserve(self._path, pages * page_bytes - os.stat(self._path).st_size):
            raise sqlite3.OperationalError(FULL)

    def free_reserve(self) -> None:
        if not self._path:
            return
        store_file.free_reserve(self._path)
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            # Debian's SQLite overwrites what is deleted, in the log, which may not have room for that.
            self._connection.execute("PRAGMA secure_delete = FAST")

    def close(self) -> None:
        self._connection.close()


def sqlite_failure(error: Exception) -> StoreFailure:
    """The error for clients: without paths."""
    if isinstance(error, sqlite3.Error) and _is_locked(error):
        return StoreUnavailable("the response store is busy")
    reason = (error.strerror or "an error") if isinstance(error, OSError) else str(error)
    return StoreFailure(f"the response store failed: {reason}")


def _is_locked(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # from Python 3.11 on
    return "is locked" in str(error) if code is None else code & 0xFF in (BUSY, LOCKED)
