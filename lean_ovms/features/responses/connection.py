"""The interface of a database connection, implemented by sqlite.py for SQLite and by postgres.py for PostgreSQL.

The SQL statements are the same for both. `?` is the placeholder of a value, and `{number}` stands for the type of an
auto-increment column; SQLite accepts PostgreSQL's names of the other types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from ...errors import StoreFailure


class StoreUnavailable(StoreFailure):
    """The error 503 of a database that cannot be reached or is busy at the moment."""

    status = 503
    code = "store_unavailable"
    retry_after_s = 2


class StoreTooSmall(StoreFailure):
    """The error 507 of a conversation that has grown larger than the whole store may be."""

    status = 507
    code = "storage_full"


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One connection to a database. Its methods raise the errors of the database's library."""

    number: ClassVar[str]

    def __init__(self, path: str) -> None: ...

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Runs one statement."""

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Runs a statement, and returns the first value of its result, or None if the result has no row."""
        row = self.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def begin(self, write: bool) -> None:
        """Begins a transaction. Only one write transaction runs at a time, but readers may run beside it."""

    def version(self) -> int:
        """Returns the version of the tables, 0 for an empty database. Raises StoreFailure if it has other tables."""

    def set_version(self, version: int) -> None:
        """Stores the version of the tables."""

    def hold(self, server: str) -> None:
        """Takes the lock of the server with this id, a number, until the connection or the process ends."""

    def holds(self, server: str) -> bool:
        """Returns whether the server with this id is running, which is known by its lock."""

    def close(self) -> None:
        """Closes the connection. Idempotent."""

    def lost(self) -> bool:
        """Returns whether the connection is broken and must be replaced."""
        return False

    def disconnect(self) -> None:
        """Makes a call that waits for the database fail at once. It may be called from any thread."""

    def keep_reserve(self) -> None:
        """Reserves disk space, before a commit that adds data, so that `use_reserve` can free it on a full disk."""

    def use_reserve(self, deletes: bool) -> None:
        """Frees disk space on a full disk: the reserve only if `deletes` is true, that is, for work that deletes."""

    @staticmethod
    def failure(error: Exception, path: str) -> tuple[StoreFailure, str]:
        """Translates an error of the database's library.

        Returns the error for clients, without paths, addresses and secrets, and the line for the log, without secrets.
        """
