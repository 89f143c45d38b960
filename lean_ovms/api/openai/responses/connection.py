"""What the tables ask of a database, and SQLite as one: a file that processes of one machine share, or memory.

postgres.py is the other. SQL is written for both: `?` marks a value, `{number}`, `{blob}` and the like stand for types
that the two name differently.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ....errors import StoreFailure, StoreUnavailable

MEMORY = ":memory:"

BUSY_TIMEOUT_S = 10.0
"""Wait so long for other servers' transactions; then it is a 503."""

BUSY, LOCKED = 5, 6
"""SQLite's error codes; the sqlite3 module has their names from Python 3.11 on only."""

FULL = "database or disk is full"
"""SQLite's words; every response says so until there is room again, and a traceback adds nothing."""


class Rows(Protocol):
    """What a statement found. rowcount: how many rows it changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One connection to a database. types: names for the schema's column types."""

    types: Mapping[str, str]

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run one statement. Raises what the database's library raises."""

    def begin(self, write: bool) -> None:
        """Begin a transaction. One that writes has the database for itself until it ends; others may read."""

    def version(self) -> int:
        """The version of the tables, 0 before there are any. Raises StoreFailure for what is not ours."""

    def set_version(self, version: int) -> None:
        """Note the version of the tables."""

    def now(self) -> float:
        """Seconds since 1970 by a clock that all servers on this database share."""

    @property
    def lost(self) -> bool:
        """It will not work again; take another."""

    def close(self) -> None:
        """Let go of the database. Idempotent."""


class Sqlite:
    """A file, made if it is not there, or memory if path is empty. Raises OSError and sqlite3.Error."""

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
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # what people said is nobody else's to read
        self._connection = sqlite3.connect(path or MEMORY, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._to_wal()
            self._connection.execute("PRAGMA synchronous = FULL")  # acknowledged means: survives a power cut
        except BaseException:
            self._connection.close()
            raise

    def _to_wal(self) -> None:
        """Readers beside one writer. Another server that opens or closes the file may refuse that for a moment."""
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
            raise StoreFailure("the file holds something else")
        return int(version)

    def set_version(self, version: int) -> None:
        self._connection.execute(f"PRAGMA user_version = {version:d}")

    def now(self) -> float:
        return time.time()

    def close(self) -> None:
        self._connection.close()


def sqlite_failure(error: Exception) -> StoreFailure:
    """What a client may know of an error of a file: no paths."""
    if isinstance(error, sqlite3.Error) and _is_locked(error):
        return StoreUnavailable("the response store is busy")
    reason = (error.strerror or "an error") if isinstance(error, OSError) else str(error)
    return StoreFailure(f"the response store failed: {reason}")


def _is_locked(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # from Python 3.11 on
    return "is locked" in str(error) if code is None else code & 0xFF in (BUSY, LOCKED)
