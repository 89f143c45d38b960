"""Runs batches, a few lines at a time, each as a request of the client that created the batch.

When the server starts again, an unfinished batch continues after its last outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ...api.response import now
from ...api.services import Service, Services
from ...config import Config
from ...errors import BadRequest, NotFound, RequestError, StartError, StoreFailure, Unavailable, reported
from ...observability.records import current_client
from ...types import Handle, Json
from ...util.concurrency import Budget
from .feature import BatchOptions
from .lines import Busy, Line, attempt, check, read_line, row
from .results import Results
from .storage import FILE, UNFINISHED, Entry, Storage

logger = logging.getLogger("lean_ovms.batches")
T = TypeVar("T")

WINDOW_S = 24 * 3600
TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
LOCK_POLL_S = 1.0
WRITE_AGAIN_S = 5.0
"""Seconds after which a failed attempt to write the end of a batch is repeated."""
UNKNOWN = "unknown"
"""The client of a transport that does not know the peer."""
PIECE_LINES = 1000
"""The number of outcomes of unsent lines that are written at once."""
KINDS = ("output", "error")
"""The two files of a batch's results: of the lines that have succeeded, and of those that have failed."""
NO_FILES = "this server does not store files; start it with --files_path"
UNSENT = {
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
}
"""The error of lines without an outcome, by the status of their batch."""


class BatchService(Service):
    """Runs the batches of the server. It is opened before serving, drained while the server stops, and then closed."""

    def __init__(self, config: Config) -> None:
        self.storage = Storage(config)
        self._options = config.of(BatchOptions)
        self._error_forms = config.composition.error_forms
        self._thread = ThreadPoolExecutor(1, "files")
        most = self._options.batch_concurrency
        self._slots = Budget(most, most_of_client=most)
        self._handle: Handle | None = None
        self._pause: Callable[[float], Awaitable[object]] = asyncio.sleep
        self._opened = False
        self._opening: asyncio.Task[None] | None = None
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._lines: dict[str, asyncio.Future[list[None]]] = {}  # of batches whose lines are running
        self._results: dict[str, Results] = {}

    async def open(self, handle: Handle, pause: Callable[[float], Awaitable[object]] | None = None) -> None:
        """Opens the directory and continues its batches. Raises StartError.

        If another server uses the directory, this happens once that has ended. `handle` returns the response to a
        request of a batch. `pause` waits for a number of seconds, or less if the server may be less busy by then.
        """
        self._handle, self._pause = handle, pause or self._pause
        try:
            self._opened = await self.in_thread(self.storage.open)
        except OSError as error:
            raise StartError(f"--files_path {self._options.files_path}: {error.strerror}") from None
        if self._opened:
            self._resume()
        else:
            logger.warning("another server uses --files_path; files and batches are available once it has stopped")
            self._opening = asyncio.get_running_loop().create_task(self._open_later())

    async def _open_later(self) -> None:
        while not self._opened:
            await asyncio.sleep(LOCK_POLL_S)
            with contextlib.suppress(OSError):
                self._opened = await self.in_thread(self.storage.open)
        self._resume()

    def _resume(self) -> None:
        for entry in self.storage.unfinished():
            self._start(entry)

    @staticmethod
    def of(services: Services) -> BatchService:
        """Returns the opened service. Raises RequestError if the server stores no files, or Unavailable."""
        if not services.config.of(BatchOptions).files_path:
            raise RequestError(NO_FILES, status=501, code="no_files")
        service = services.get(BatchService)
        if not service._opened:
            raise Unavailable("another server uses this server's files", code="files_in_use")
        return service

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Runs a function that waits for the disk. All such functions run in one thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def drain(self, timeout_s: float) -> None:
        """Stops sending lines. Lines without an outcome are sent again when a server continues the batch."""
        tasks = [*self._runs.values(), *filter(None, [self._opening])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        self._opened = False
        await self.drain(0)
        await self.in_thread(self.storage.close)

    # --- batches

    async def create(self, entry: Entry) -> None:
        """Stores a batch and starts it, even if the client leaves meanwhile. Raises StoreFailure and BadRequest."""

        async def run() -> None:
            await self.in_thread(partial(self.storage.add, entry))
            if self._opened:
                self._start(entry)

        await asyncio.shield(run())

    async def cancel(self, entry: Entry) -> Json:
        """Cancels a batch, and returns its object. Raises RequestError with the status 409 if it has finished."""
        name, status = entry.body["id"], entry.body["status"]
        if status in ("validating", "in_progress"):
            if name in self._lines:
                self._lines[name].cancel()  # done first, because the client may disconnect while the rest is awaited
            await self._set(entry, "cancelling")
        elif status != "cancelling":
            raise RequestError(f"Cannot cancel a batch with status '{status}'.", status=409, code="batch_finished")
        return entry.body

    async def delete(self, entry: Entry) -> None:
        """Deletes a batch and its result files. Raises BadRequest if it is not finished."""
        if entry.body["status"] in UNFINISHED:
            raise BadRequest(f"{entry.body['id']} is not finished; cancel it first.")
        body = entry.body
        for name in (body["id"], body["input_file_id"], *(_result_file(body, kind) for kind in KINDS)):
            await self.in_thread(partial(self.storage.delete, name))

    def _start(self, entry: Entry) -> None:
        task = asyncio.get_running_loop().create_task(self._run(entry))
        self._runs[entry.body["id"]] = task
        task.add_done_callback(lambda _: self._runs.pop(entry.body["id"], None))

    async def _set(self, entry: Entry, status: str) -> None:
        """Sets and stores the status of an unfinished batch.

        A failure to store it is ignored: after a restart the batch just has an earlier status.
        """
        _set_status(entry.body, status)
        with contextlib.suppress(StoreFailure):
            await self.in_thread(partial(self.storage.put, entry, entry.to_json()))

    async def _run(self, entry: Entry) -> None:
        """Runs a batch to its end, and handles all errors."""
        name = entry.body["id"]
        try:
            await self._work(entry)
        except Exception as failure:
            _add_error(entry.body, reported(failure, logger, "%s failed", name))
            await self._finish(entry, "failed")
        finally:
            if name in self._results:
                with contextlib.suppress(StoreFailure):
                    await self._results.pop(name).flush()
            self._lines.pop(name, None)

    async def _work(self, entry: Entry) -> None:
        body, storage = entry.body, self.storage
        if not body["request_counts"]["total"]:
            total, errors = await asyncio.to_thread(self._check, body)
            body["request_counts"]["total"] = total
            if errors:
                body["errors"] = {"object": "list", "data": errors}
                await self._finish(entry, "failed")
                return
        if body["status"] == "validating":
            await self._set(entry, "in_progress")
        paths = [storage.data(_result_file(body, kind)) for kind in KINDS]
        results = await self.in_thread(lambda: Results(storage, paths, self.in_thread))
        self._results[body["id"]] = results
        _count(body, results)
        if body["status"] == "in_progress":
            await self._send(entry, results)
        status = "completed"
        if body["status"] == "cancelling":
            status = "cancelled"
        elif len(results.done) < body["request_counts"]["total"]:
            status = "expired"
        if status in UNSENT:
            try:
                await self._add_unsent(body, results, *UNSENT[status])
                await results.flush()
            except StoreFailure as failure:  # the disk is full even for these lines; the batch ends anyway
                _add_error(body, failure)
        else:
            await self._set(entry, "finalizing")
            await results.flush()
        await self._finish(entry, status)

    def _check(self, body: Json) -> tuple[int, list[Json]]:
        with self.storage.open_data(body["input_file_id"]) as file:
            return check(file, (body["endpoint"],), self._options.max_batch_lines)

    async def _send(self, entry: Entry, results: Results) -> None:
        """Sends the lines of a batch until all have an outcome, or the batch is cancelled or expires."""
        left, count = self._left(entry.body, results), self._options.batch_concurrency
        tasks = [asyncio.ensure_future(self._send_each(left, entry, results)) for _ in range(count)]
        lines = self._lines[entry.body["id"]] = asyncio.gather(*tasks)
        ended: set[asyncio.Future[Any]] = {lines, *tasks}
        try:
            await asyncio.wait({lines}, timeout=max(0.0, entry.body["expires_at"] - time.time()))
        finally:
            for task in tasks:  # also if one has failed
                task.cancel()
            await asyncio.wait(ended)
            if not lines.cancelled():
                lines.exception()  # otherwise asyncio reports the exception if this task is cancelled too
        with contextlib.suppress(asyncio.CancelledError):
            lines.result()

    async def _send_each(self, left: Iterator[tuple[int, Line]], entry: Entry, results: Results) -> None:
        """Sends one line after the other, while other tasks send further lines of the same batch.

        A line is read from the file only when it has a slot, so that few lines are in memory. A line for which the
        server is too busy waits without a slot, and is then read again.
        """
        assert self._handle is not None
        again: int | None = None  # the position of a line that has waited
        wait_s: float | None
        while True:
            with await self._slots.acquire(1, entry.owner):
                place, line = await self.in_thread(partial(self._next, left, entry.body, again))
                if line is None:
                    return
                try:
                    outcome = await attempt(self._handle, line, entry.owner, self._error_forms)
                except Busy as busy:
                    again, wait_s = place, busy.retry_after_s
                else:
                    results.put(*outcome)
                    await asyncio.shield(results.flush())
                    _count(entry.body, results)
                    again, wait_s = None, None
                del line
            if wait_s is not None:
                await self._pause(wait_s)

    def _next(self, left: Iterator[tuple[int, Line]], body: Json, again: int | None) -> tuple[int, Line | None]:
        """Returns the place and text of the line at `again` or, if it is None, the next line; None after the last."""
        if again is None:
            return next(left, (0, None))
        return again, read_line(self._raw_line(body, again), (body["endpoint"],))

    def _raw_line(self, body: Json, place: int) -> bytes:
        """Reads the line at a place of a batch's input file. The file is closed again, as there may be many batches."""
        with self.storage.open_data(body["input_file_id"]) as file:
            file.seek(place)
            return file.readline()

    async def _add_unsent(self, body: Json, results: Results, code: str, message: str) -> None:
        """Adds an error for each line without an outcome."""

        def add_some() -> bool:
            lines = list(islice(left, PIECE_LINES))
            for _, line in lines:
                results.put(row(line.custom_id, error={"code": code, "message": message}), failed=True)
            return bool(lines)

        left = self._left(body, results)
        while await self.in_thread(add_some):
            await results.flush()

    def _left(self, body: Json, results: Results) -> Iterator[tuple[int, Line]]:
        """Yields the lines of a batch that have no outcome yet, with their places in its input file."""
        place = 0
        while raw := self._raw_line(body, place):
            if not raw.isspace() and (line := read_line(raw, (body["endpoint"],))).custom_id not in results.done:
                yield place, line
            place += len(raw)

    async def _finish(self, entry: Entry, status: str) -> None:
        """Ends a batch, and makes files of its results.

        The batch ends even if the disk is full, so that its files can be deleted to make room. Its new status is then
        written again and again until that succeeds. A server that starts before that continues the batch.
        """
        body, storage = entry.body, self.storage
        results = self._results.get(body["id"])
        made: list[Entry] = []
        if results is not None:
            _count(body, results)
            for kind in KINDS:
                name = _result_file(body, kind)
                size = path.stat().st_size if (path := storage.data(name)).exists() else 0
                if size:
                    file = file_body(name, f"{body['id']}_{kind}.jsonl", "batch_output", size, entry.keep_s)
                    made.append(Entry(entry.owner, file))
                    body[f"{kind}_file_id"] = name
                else:
                    await self.in_thread(partial(storage.drop_data, name))
        _set_status(body, status)
        made.append(entry)
        for one in made:
            await self.in_thread(partial(storage.keep, one))
        logger.info("%s is %s: %s", body["id"], status, body["request_counts"])
        for one in made:
            await self._write(one)

    async def _write(self, entry: Entry) -> None:
        """Stores an ended batch that is only in memory, again and again until that succeeds."""
        while True:
            with contextlib.suppress(StoreFailure):  # the failure is logged
                await self.in_thread(partial(self.storage.put_kept, entry))
                return
            await asyncio.sleep(WRITE_AGAIN_S)


async def read_file(services: Services, name: str, most: int) -> tuple[str, bytes]:
    """Returns the file name and the content of an uploaded file.

    Args:
        services: The services of the server.
        name: The id of the file.
        most: The most bytes that it may have.

    Raises:
        RequestError: There is no such file, it is too large, or the server stores no files.
    """
    if not services.config.of(BatchOptions).files_path:  # a 400, since the endpoint that reads the file is implemented
        raise BadRequest(NO_FILES, code="no_files")
    service = BatchService.of(services)

    def read() -> tuple[str, bytes]:
        try:
            body = service.storage.find(FILE, name).body
            with service.storage.open_data(name) as file:
                data = file.read(most + 1)
        except NotFound as error:
            raise BadRequest(error.message, code="file_not_found") from None
        if len(data) > most:
            raise BadRequest(f"the file {name[:100]!r} has more than {most} bytes")
        return body["filename"], data

    return await service.in_thread(read)


def owner() -> str:
    """Returns the name of the client of the current request."""
    return current_client() or UNKNOWN


def _result_file(body: Json, kind: str) -> str:
    """Returns the id of a batch's file of answers or of errors, which follows from the batch's id."""
    return f"{FILE}-{body['id'].rpartition('_')[2]}-{kind}"


def _set_status(body: Json, status: str) -> None:
    body["status"] = status
    body[f"{status}_at"] = now()


def _add_error(body: Json, error: RequestError) -> None:
    """Adds an error, for which the batch ended, to its object."""
    shown = {"code": error.code, "message": error.message, "param": None, "line": None}
    body["errors"] = {"object": "list", "data": [shown]}


def _count(body: Json, results: Results) -> None:
    """Sets the numbers of finished lines in the object of a batch."""
    counts = body["request_counts"]
    counts["completed"], counts["failed"] = results.counts
    if "unsent" in counts:
        counts["unsent"] = results.unsent


def batch_body(kind: str, name: str, endpoint: str, input_file_id: str, **fields: Json) -> Json:
    """Returns the object of a new batch.

    Args:
        kind: The type name of the object.
        name: The id of the batch.
        endpoint: The path that its requests are for.
        input_file_id: The id of the file with its requests.
        **fields: Members that only one API has.
    """
    created_at = now()
    return {
        "id": name,
        "object": kind,
        "endpoint": endpoint,
        "errors": None,
        "input_file_id": input_file_id,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": created_at,
        "expires_at": created_at + WINDOW_S,
        **{f"{status}_at": None for status in TIMES},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        **fields,
    }


def file_body(name: str, filename: str, purpose: str, size: int, keep_s: int | None) -> Json:
    """Returns the object of a new file, as clients get it.

    Args:
        name: The id of the file.
        filename: The name that the client gave it.
        purpose: The use of the file that the client named, such as "batch".
        size: The number of bytes in the file.
        keep_s: The seconds until the file is deleted; None if it never is.
    """
    return {
        "id": name,
        "object": FILE,
        "bytes": size,
        "created_at": now(),
        "expires_at": None if keep_s is None else now() + keep_s,
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }
