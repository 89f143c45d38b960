"""One SQLite connection in a thread of its own, so that no disk ever holds up the event loop.

Whatever waits when the thread looks is done in one transaction: one fsync acknowledges it all. A piece of work that
fails takes nothing of the others with it. Knows no tables; an idle database costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ....errors import RequestError, StartError, StoreFailure

logger = logging.getLogger("lean_ovms.responses")

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

MEMORY = ":memory:"

BUSY_TIMEOUT_S = 2.0
"""Wait so long for another process to let go of the file: a server that is restarted may overlap with the old one."""


FULL = "database or disk is full"
"""SQLite's words; every response says so until there is room again, and a traceback adds nothing."""


class _Job:
    """Work, and who waits for it."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(self, work: Work[Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None

    def tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Database:
    """A file, or memory if path is empty. prepare: run once when it is opened. before: run at each transaction's start.

    Opened by `open`, or else by the first work.
    """

    def __init__(self, path: str, prepare: Work[None], before: Work[None]) -> None:
        self._path = path
        self._prepare = prepare
        self._before = before
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def open(self) -> None:
        """Open it now. Raises StartError."""
        try:
            await self.run(lambda connection: None)
        except StoreFailure as error:
            raise StartError(f"--response_store {self._path}: {error.message}") from None

    async def run(self, work: Work[T]) -> T:
        """What work returns, once its transaction is on disk. Raises what it raises, and StoreFailure."""
        if self._closed:
            raise StoreFailure("the response store is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="response-store", daemon=True)
            self._thread.start()
        job = _Job(work)
        self._jobs.put(job)
        answer: T = await job.future
        return answer

    async def close(self) -> None:
        """Finish what waits, and let go of the file. Idempotent."""
        if self._thread is not None and not self._closed:
            self._jobs.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._closed = True

    # --- the thread's side ---

    def _serve(self) -> None:
        connection, failed = None, ""
        try:
            connection = self._connect()
        except (OSError, sqlite3.Error, RequestError) as error:
            failed = f"the response store cannot be opened: {_reason(error)}"
        going = True
        while going:
            jobs, going = self._waiting()
            if connection is None:
                for job in jobs:
                    job.error = StoreFailure(failed)
            elif jobs:
                self._transact(connection, jobs)
            for job in jobs:
                job.tell()
        if connection is not None:
            connection.close()

    def _waiting(self) -> tuple[list[_Job], bool]:
        """All that waits, at least one thing; and whether to go on."""
        found = [self._jobs.get()]
        try:
            while found[-1] is not None:
                found.append(self._jobs.get_nowait())
        except Empty:
            pass
        return [job for job in found if job is not None], found[-1] is not None

    def _connect(self) -> sqlite3.Connection:
        if self._path:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # what people said is nobody else's to read
        connection = sqlite3.connect(self._path or MEMORY, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # acknowledged means: survives a power cut
            connection.execute("BEGIN IMMEDIATE")
            self._prepare(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._before(connection)
            for job in jobs:
                self._one(connection, job)
            connection.execute("COMMIT")
        except Exception as error:  # a full disk, or a bug: whoever waits learns it, and the thread goes on
            logger.error("the response store failed: %s", error, exc_info=str(error) != FULL)
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            for job in jobs:
                job.error = StoreFailure(f"the response store failed: {_reason(error)}")

    @staticmethod
    def _one(connection: sqlite3.Connection, job: _Job) -> None:
        connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(connection)
        except RequestError as error:
            job.error = error
        except Exception as error:  # whatever it was, the thread and the other work go on
            logger.exception("the response store failed")
            job.error = StoreFailure(f"the response store failed: {_reason(error)}")
        if job.error is not None and connection.in_transaction:
            connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")


def _reason(error: Exception) -> str:
    """What a client may know: no paths."""
    return error.strerror or "an error" if isinstance(error, OSError) else str(error)
