"""A database in its own thread, so that neither disk nor network blocks the event loop.

Each call is one transaction. While the database cannot be reached, calls fail with StoreUnavailable; each tries to
connect again. Knows no tables; an idle database costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ....errors import RequestError, StartError, StoreFailure, StoreUnavailable
from .connection import Connection, StoreFull

logger = logging.getLogger("lean_ovms.responses")

T = TypeVar("T")

CALL_TIMEOUT_S = 20.0
"""Longest wait for a database that neither answers nor fails."""


class Database:
    """A database whose connection is opened by `open`, or else by the first call.

    prepare: run once for each connection. upkeep: returns what is to be done before the next transaction.
    """

    def __init__(
        self,
        kind: type[Connection],
        path: str,
        prepare: Callable[[Connection], None],
        upkeep: Callable[[Connection], Sequence[Callable[[], object]]],
    ) -> None:
        self._kind = kind
        self._path = path
        self._prepare = prepare
        self._upkeep = upkeep
        self._thread = ThreadPoolExecutor(1, "response-store")
        self._connection: Connection | None = None
        self._unavailable = False
        self._closed = False

    async def open(self, shown: str) -> None:
        """Opens the database. shown: its name in errors. Raises StartError."""
        try:
            await self.run(lambda connection: None)
        except StoreFailure as error:
            raise StartError(f"--response_store {shown}: {error.message}") from None

    async def run(self, work: Callable[[Connection], T], *, write: bool = True, deletes: bool = False) -> T:
        """Runs work in a transaction; returns its result after the commit. Raises what work raises, and StoreFailure.

        write: False for work that changes nothing; it does not wait for writes of other servers. deletes: for work
        that only deletes; on a full disk it is done with space that is kept for it.
        """
        if self._closed:
            raise StoreFailure("the response store is closed")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self._transact, work, write, deletes)
        done, _ = await asyncio.wait([future], timeout=CALL_TIMEOUT_S)
        if not done:
            future.cancel()  # it was reported as failed: if it has not begun, it never does
            self._disconnect()
            raise StoreUnavailable("the response store's database does not answer")
        return future.result()

    async def close(self) -> None:
        """Finishes waiting calls, and closes the database. Idempotent."""
        if not self._closed:
            self._closed = True
            closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close_connection)
            done, _ = await asyncio.wait([closing], timeout=CALL_TIMEOUT_S)
            if not done:
                self._disconnect()
                await closing
            self._thread.shutdown()

    def _disconnect(self) -> None:
        if (connection := self._connection) is not None:
            connection.disconnect()

    # --- the thread's side ---

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _transact(self, work: Callable[[Connection], T], write: bool, deletes: bool) -> T:
        """Runs work in a transaction; once more if the first one changed nothing and the second one may succeed."""
        tried = False
        while True:
            db, committing = self._connected(), False
            try:
                db.begin(write)
                self._do_upkeep(db, write)
                result = work(db)
                if write and not deletes:
                    db.keep_reserve()
                committing = write
                db.execute("COMMIT")
                return result
            except Exception as error:  # of any kind: the thread continues
                failure, text = self._explain(error)
                with contextlib.suppress(Exception):
                    db.execute("ROLLBACK")
                if self._repaired(db, failure, deletes, committing) and not tried:
                    tried = True
                    continue
                if failure is not error:
                    logger.error("the response store failed: %s", text, exc_info=type(failure) is StoreFailure)
                raise failure from None

    def _repaired(self, db: Connection, failure: RequestError, deletes: bool, committing: bool) -> bool:
        """Removes the cause of a failure, if it can; whether the transaction changed nothing and may be repeated."""
        if db.lost():
            self._close_connection()
            return not committing
        if isinstance(failure, StoreFull):
            db.use_reserve(deletes)
            return True
        return False

    def _do_upkeep(self, db: Connection, write: bool) -> None:
        """Does what is due, in a transaction of its own, and begins the transaction again."""
        if not self._upkeep(db):
            return
        db.execute("COMMIT")
        db.begin(write=True)
        for job in self._upkeep(db):
            job()
        db.execute("COMMIT")
        db.begin(write)

    def _connected(self) -> Connection:
        """The connection, opened now if there is none. Raises RequestError."""
        if self._connection is not None:
            return self._connection
        try:
            self._connection = self._connect()
        except Exception as error:  # unreachable, or the file cannot be opened
            failure, text = self._explain(error)
            if not self._unavailable:
                logger.error("the response store cannot be opened: %s", text)
            self._unavailable = True
            raise failure from None
        if self._unavailable:
            logger.info("the response store is available again")
        self._unavailable = False
        return self._connection

    def _connect(self) -> Connection:
        connection = self._kind(self._path)
        try:
            connection.begin(write=True)
            self._prepare(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _explain(self, error: Exception) -> tuple[RequestError, str]:
        """(the error for the client, the line for the log)."""
        return (error, error.message) if isinstance(error, RequestError) else self._kind.failure(error, self._path)
