"""Declares connections to databases: SQLite is in sqlite.py, PostgreSQL in postgres.py.

SQL is written for both. `?` marks a value, and `{number}` the type of numbers that the database counts up itself;
SQLite takes PostgreSQL's names of the other types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from ...errors import StoreFailure


class StoreUnavailable(StoreFailure):
    """503: the response store's database is away or busy; it may be back in a moment."""

    status = 503
    code = "store_unavailable"
    retry_after_s = 2


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One connection to a database. Methods raise the errors of the database's library."""

    number: ClassVar[str]

    def __init__(self, path: str) -> None: ...

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Runs one statement."""

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Returns the first value of a result; None without a row."""
        row = self.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def begin(self, write: bool) -> None:
        """Begins a transaction. Only one write transaction runs at a time; readers may run meanwhile."""

    def version(self) -> int:
        """Returns the version of the tables, 0 for an empty database. Raises StoreFailure for foreign tables."""

    def set_version(self, version: int) -> None:
        """Stores the version of the tables."""

    def hold(self, server: str) -> None:
        """Takes the lock of this server, which ends with the connection or the process.

        Args:
            server: The id of the server, a number.
        """

    def holds(self, server: str) -> bool:
        """Returns whether the server with this id is there: whether it has its lock."""

    def close(self) -> None:
        """Closes the connection. Idempotent."""

    def lost(self) -> bool:
        """Returns whether the connection is broken and must be replaced."""
        return False

    def disconnect(self) -> None:
        """Makes a call that waits for the database fail now, from any thread."""

    def keep_reserve(self) -> None:
        """Keeps space on the disk for `use_reserve`, before a commit that adds data."""

    def use_reserve(self, deletes: bool) -> None:
        """Makes room on a full disk: to delete, or else only what can be freed besides the reserve."""

    @staticmethod
    def failure(error: Exception, path: str) -> tuple[StoreFailure, str]:
        """Returns the error for clients, without paths, addresses and secrets, and the line for the log, without
        secrets."""
