"""A database in its own thread, so that neither disk nor network blocks the event loop.

All waiting jobs run in one transaction: one fsync for all. Each job has a savepoint, so that its failure does not
affect the others. While the database cannot be reached, jobs fail with StoreUnavailable; each transaction tries to
connect again. Knows no tables; an idle database costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ....errors import RequestError, StartError, StoreFailure, StoreUnavailable
from . import postgres
from .connection import FULL, DatabaseConnection, Sqlite, sqlite_failure

logger = logging.getLogger("lean_ovms.responses")

T = TypeVar("T")
Work = Callable[[DatabaseConnection], T]

JOB_TIMEOUT_S = 20.0
"""Longest wait for a database that neither answers nor fails."""


class _Job:
    """Work, and the future for its result. write: it may change data. deletes: it only deletes."""

    __slots__ = ("deletes", "error", "future", "loop", "result", "work", "write")

    def __init__(self, work: Work[Any], write: bool, deletes: bool) -> None:
        self.work = work
        self.deletes = deletes
        self.write = write
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None

    def notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits for the result
            self.loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Database:
    """A PostgreSQL URL, a SQLite file, or memory if path is empty. Opened by `open`, or else by the first job.

    prepare: run once for each connection. cleanup: run at the start of each write transaction. cleanup_due: whether
    `cleanup` would change anything; a read transaction then becomes a write transaction.
    """

    def __init__(self, path: str, prepare: Work[None], cleanup: Work[None], cleanup_due: Work[bool]) -> None:
        self._path = path
        self._prepare = prepare
        self._cleanup = cleanup
        self._cleanup_due = cleanup_due
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: DatabaseConnection | None = None
        self._unavailable = False
        self._closed = False

    async def open(self) -> None:
        """Connect now. Raises StartError."""
        shown = self._path
        if postgres.is_url(self._path):
            postgres.check(self._path)
            shown = postgres.without_credentials(self._path)
        elif "://" in self._path:
            raise StartError(
                f"--response_store takes a file or postgresql://..., not {self._path.split('://')[0]}://..."
            )
        try:
            await self.run(lambda connection: None)
        except StoreFailure as error:
            raise StartError(f"--response_store {shown}: {error.message}") from None

    async def run(self, work: Work[T], *, write: bool = True, deletes: bool = False) -> T:
        """Run work in a transaction; returns its result after the commit. Raises what work raises, and StoreFailure.

        write: False for work that changes nothing; it does not wait for writes of other servers. deletes: for work
        that only deletes; on a full disk it is done with space that is kept for it.
        """
        if self._closed:
            raise StoreFailure("the response store is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_jobs, name="response-store", daemon=True)
            self._thread.start()
        job = _Job(work, write, deletes)
        self._jobs.put(job)
        done, _ = await asyncio.wait([job.future], timeout=JOB_TIMEOUT_S)
        if not done:
            job.future.cancel()
            self._disconnect()
            raise StoreUnavailable("the response store's database does not answer")
        answer: T = job.future.result()
        return answer

    async def close(self) -> None:
        """Finish waiting jobs, and close the database. Idempotent."""
        if self._thread is not None and not self._closed:
            self._jobs.put(None)
            joining = asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            done, _ = await asyncio.wait([joining], timeout=JOB_TIMEOUT_S)
            if not done:
                self._disconnect()
                await joining
        self._closed = True

    def _disconnect(self) -> None:
        if isinstance(connection := self._connection, postgres.Postgres):
            connection.disconnect()

    # --- the thread's side ---

    def _run_jobs(self) -> None:
        running = True
        while running:
            jobs, running = self._next_jobs()
            if jobs:
                self._run_batch(jobs)
            for job in jobs:
                job.notify()
        if self._connection is not None:
            self._connection.close()

    def _next_jobs(self) -> tuple[list[_Job], bool]:
        """(all waiting jobs, whether to continue). Blocks until there is at least one."""
        found = [self._jobs.get()]
        try:
            while found[-1] is not None:
                found.append(self._jobs.get_nowait())
        except Empty:
            pass
        # A job that timed out was reported as failed: it must not run later.
        jobs = [job for job in found if job is not None and not job.future.cancelled()]
        return jobs, found[-1] is not None

    def _run_batch(self, jobs: list[_Job]) -> None:
        """Run jobs in one transaction. If the connection was lost before the commit, retry once on a new one."""
        for _ in range(2):
            for job in jobs:
                job.error = None
            connection = self._connected(jobs)
            if connection is None:
                return
            retryable = self._transact(connection, jobs)
            if not connection.lost:
                self._repeat_on_full_disk(connection, jobs)
                return
            connection.close()
            self._connection = None
            if not retryable:
                return

    def _repeat_on_full_disk(self, connection: DatabaseConnection, jobs: list[_Job]) -> None:
        """Run the jobs again that found the disk full: what deletes with the reserve's space, then the others."""
        full = [job for job in jobs if _found_full(job)]
        if not full:
            return
        deletes, writes = [job for job in full if job.deletes], [job for job in full if not job.deletes]
        connection.free_reserve()
        self._repeat(connection, deletes)
        if writes:
            with contextlib.suppress(sqlite3.Error):
                connection.keep_reserve()
            self._repeat(connection, writes)
        if any(_found_full(job) for job in full):
            logger.error("the response store failed: %s", FULL)

    def _repeat(self, connection: DatabaseConnection, jobs: list[_Job]) -> None:
        for job in jobs:
            job.error = None
        if jobs:
            self._transact(connection, jobs)

    def _connected(self, jobs: list[_Job]) -> DatabaseConnection | None:
        """The connection; None if it cannot be opened, with the error set on each job."""
        if self._connection is not None:
            return self._connection
        try:
            self._connection = self._connect()
        except Exception as error:  # unreachable, or the file cannot be opened: every job fails
            failure = self._failure(error)
            if not self._unavailable:
                logger.error("the response store cannot be opened: %s", self._log_text(error))
            self._unavailable = True
            for job in jobs:
                job.error = failure
            return None
        if self._unavailable:
            logger.info("the response store is available again")
        self._unavailable = False
        return self._connection

    def _connect(self) -> DatabaseConnection:
        url = postgres.is_url(self._path)
        connection: DatabaseConnection = postgres.Postgres(self._path) if url else Sqlite(self._path)
        try:
            connection.begin(write=True)
            self._prepare(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _transact(self, connection: DatabaseConnection, jobs: list[_Job]) -> bool:
        """Run jobs in one transaction; whether it failed and certainly changed nothing, so that a retry is safe."""
        write, committing = any(job.write for job in jobs), False
        try:
            connection.begin(write)
            if not write and self._cleanup_due(connection):
                connection.execute("COMMIT")
                write = True
                connection.begin(write)
            if write:
                self._cleanup(connection)
            for job in jobs:
                self._run_job(connection, job)
            if any(job.write and not job.deletes for job in jobs):
                connection.keep_reserve()
            committing = write
            connection.execute("COMMIT")
            return False
        except Exception as error:  # a full disk, a lost connection, a bug: every job fails, the thread continues
            failure = self._failure(error)
            if str(error) != FULL:
                known = isinstance(failure, StoreUnavailable)
                logger.error("the response store failed: %s", self._log_text(error), exc_info=not known)
            with contextlib.suppress(Exception):
                connection.execute("ROLLBACK")
            for job in jobs:
                job.error = failure
            return not committing

    def _run_job(self, connection: DatabaseConnection, job: _Job) -> None:
        connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(connection)
        except RequestError as error:
            job.error = error
        except Exception as error:  # of any kind: the thread and the other jobs continue
            job.error = self._failure(error)
            if not connection.lost and str(error) != FULL:
                logger.exception("the response store failed")
        if job.error is not None:
            connection.execute("ROLLBACK TO job")  # fails when the whole transaction is gone
        connection.execute("RELEASE job")

    def _failure(self, error: Exception) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, (OSError, sqlite3.Error)) or not postgres.is_url(self._path):
            return sqlite_failure(error)
        return postgres.postgres_failure(error)

    def _log_text(self, error: Exception) -> str:
        if isinstance(error, RequestError):
            return error.message
        return postgres.log_text(error, self._path) if postgres.is_url(self._path) else str(error)


def _found_full(job: _Job) -> bool:
    return isinstance(job.error, StoreFailure) and FULL in job.error.message
