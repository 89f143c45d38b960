"""A database with a thread of its own, so that neither disk nor network blocks the event loop.

All waiting calls run in one transaction, with one write to the disk. Each has a savepoint, so that its failure does not
affect the others. While the database cannot be reached, calls fail with StoreUnavailable, and each new transaction
tries to connect again. This module knows no tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...errors import RequestError, StartError, StoreFailure, StoreFull
from .connection import Connection, StoreUnavailable

logger = logging.getLogger("lean_ovms.responses")

T = TypeVar("T")

CALL_TIMEOUT_S = 20.0
"""Longest wait for a database that neither answers nor fails."""


@dataclass(slots=True)
class _Call:
    """A call that waits for the thread of the database."""

    work: Callable[[Connection], Any]
    """The function that is run in a transaction."""
    write: bool
    """Whether the work may change data."""
    deletes: bool
    """Whether the work only deletes, so that it may use the disk space that is reserved for a full disk."""
    future: Future[Any] = field(default_factory=Future)
    """The future of the work's result or error."""


class Database:
    """A database, whose connection is opened by `open` or else by the first call."""

    def __init__(
        self,
        kind: type[Connection],
        path: str,
        prepare: Callable[[Connection], None],
        upkeep: Callable[[Connection], Sequence[Callable[[], object]]],
    ) -> None:
        """Starts the thread; the connection is opened later.

        Args:
            kind: The class of the connection.
            path: The file, or the address, of the database.
            prepare: Sets up a new connection, for example its tables.
            upkeep: Returns the maintenance functions to run before the next transaction.
        """
        self._kind = kind
        self._path = path
        self._prepare = prepare
        self._upkeep = upkeep
        self._thread = ThreadPoolExecutor(1, "response-store")
        self._waiting: deque[_Call] = deque()
        self._connection: Connection | None = None
        self._unavailable = False
        self._closed = False

    async def open(self, shown: str) -> None:
        """Opens the database, which has the name `shown` in errors. Raises StartError."""
        try:
            await self.run(lambda connection: None)
        except StoreFailure as error:
            raise StartError(f"--response_store {shown}: {error.message}") from None

    async def run(self, work: Callable[[Connection], T], *, write: bool = True, deletes: bool = False) -> T:
        """Runs work in a transaction, and returns its result after the commit.

        Args:
            work: The function to run with the connection. Its error is raised here after its changes are undone.
            write: Whether the work may change data; work that only reads does not wait for writes of other servers.
            deletes: Whether the work only deletes; on a full disk it may use the disk space that is reserved for this.

        Raises:
            StoreFailure: The database is closed, cannot be reached, or fails.
        """
        if self._closed:
            raise StoreFailure("the response store is closed")
        call = _Call(work, write, deletes)
        self._waiting.append(call)
        self._thread.submit(self._run_waiting)
        future = asyncio.wrap_future(call.future)
        # Otherwise asyncio would report the error of a call whose client has left.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait([future], timeout=CALL_TIMEOUT_S)
        if not done:
            future.cancel()  # the call is reported as failed, so it must not begin later
            self._disconnect()
            raise StoreUnavailable("the response store's database did not answer in time")
        result: T = future.result()
        return result

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

    def _run_waiting(self) -> None:
        """Runs all waiting calls. There may be none, if an earlier run has taken them along."""
        calls = []
        while self._waiting:
            if (call := self._waiting.popleft()).future.set_running_or_notify_cancel():
                calls.append(call)
        if len(calls) > 1 and self._run_together(calls):
            return
        for call in calls:
            try:
                call.future.set_result(self._transact(call.work, call.write, call.deletes))
            except RequestError as error:
                call.future.set_exception(error)

    def _run_together(self, calls: list[_Call]) -> bool:
        """Runs calls in one transaction, and returns whether that succeeded.

        On a full disk it returns False: nothing has changed, and calls that only delete may succeed alone.
        """
        write, deletes = any(call.write for call in calls), all(call.deletes for call in calls)
        try:
            outcomes = self._transact(lambda db: [self._outcome(db, call) for call in calls], write, deletes)
        except StoreFull:
            return False
        except RequestError as error:
            outcomes = [error] * len(calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            if isinstance(outcome, RequestError):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)
        return True

    def _outcome(self, db: Connection, call: _Call) -> Any:
        """Runs a call in a savepoint. Returns its result or RequestError; raises errors of the whole transaction."""
        db.execute("SAVEPOINT call")
        try:
            result = call.work(db)
        except Exception as error:
            failure, text = self._explain(error)
            if db.lost() or isinstance(failure, StoreFull):
                raise
            db.execute("ROLLBACK TO call")  # fails if the whole transaction is gone
            if failure is not error:
                logger.exception("the response store failed: %s", text)
            result = failure
        db.execute("RELEASE call")
        return result

    def _transact(self, work: Callable[[Connection], T], write: bool, deletes: bool) -> T:
        """Runs work in a transaction. One that failed is repeated once if it changed nothing and may succeed now."""
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
            except Exception as error:  # any error; the thread continues
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
        """Tries to remove the cause of a failure. Returns whether the transaction may be repeated."""
        if db.lost():
            self._close_connection()
            return not committing
        if isinstance(failure, StoreFull):
            db.use_reserve(deletes)
            return True
        return False

    def _do_upkeep(self, db: Connection, write: bool) -> None:
        """Runs the maintenance that is due as a transaction of its own, and begins the caller's transaction again."""
        if not self._upkeep(db):
            return
        db.execute("COMMIT")
        db.begin(write=True)
        for job in self._upkeep(db):
            job()
        db.execute("COMMIT")
        db.begin(write)

    def _connected(self) -> Connection:
        """Returns the connection, and opens it first if necessary. Raises RequestError."""
        if self._connection is not None:
            return self._connection
        try:
            self._connection = self._connect()
        except Exception as error:  # the database is unreachable, or the file cannot be opened
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
        """Returns the error for the client, and the line for the log."""
        return (error, error.message) if isinstance(error, RequestError) else self._kind.failure(error, self._path)
