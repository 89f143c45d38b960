"""The outcomes of a batch on the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from ...errors import StoreFailure
from ...types import Json
from ...util.files import opener
from .storage import Storage, failure


class Results:
    """The outcomes of a batch, in a file of answers and one of errors. Each is on the disk before it counts.

    What the files have already counts; a last line that was not written to its end is cut off.
    """

    def __init__(
        self, storage: Storage, paths: Sequence[Path], in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        """Reads what the files have.

        Args:
            storage: Keeps the files.
            paths: Those of the answers and of the errors.
            in_thread: Runs a function in the thread of `storage`.

        Raises:
            OSError: They cannot be read.
        """
        self.done: set[str] = set()
        """The custom_id of each outcome."""
        self.counts = [0, 0]
        """The numbers of answers and of errors."""
        self.unsent = 0
        """The number of errors of lines that were not sent."""
        self._storage, self._paths, self._in_thread = storage, paths, in_thread
        self._pending: tuple[list[bytes], list[bytes]] = ([], [])
        self._turn = asyncio.Lock()
        self._error: StoreFailure | None = None
        for number, path in enumerate(paths):
            with open(path, "ab+", opener=opener) as file:
                size, end = file.tell(), 0
                file.seek(0)
                for raw in file:
                    try:
                        self._add(orjson.loads(raw if raw.endswith(b"\n") else b""))
                    except (ValueError, KeyError, TypeError):
                        break
                    end += len(raw)
                    self.counts[number] += 1
                file.truncate(end)
            storage.used += end - size

    def put(self, outcome: Json, failed: bool) -> None:
        """Takes the outcome of a line, which `flush` writes."""
        self._add(outcome)
        self._pending[failed].append(orjson.dumps(outcome, option=orjson.OPT_APPEND_NEWLINE))

    def _add(self, outcome: Json) -> None:
        self.done.add(outcome["custom_id"])
        self.unsent += outcome["error"] is not None

    async def flush(self) -> None:
        """Returns when all outcomes are on the disk. Those that come meanwhile are written together. Raises
        StoreFailure, and then each time."""
        async with self._turn:
            if self._error is not None:
                raise self._error
            pending, self._pending = self._pending, ([], [])
            try:
                await self._in_thread(lambda: self._write(pending))
            except StoreFailure as error:
                self._error = error
                raise
            self.counts = [count + len(rows) for count, rows in zip(self.counts, pending, strict=True)]

    def _write(self, pending: tuple[list[bytes], list[bytes]]) -> None:
        for path, rows in zip(self._paths, pending, strict=True):
            if rows:
                data = b"".join(rows)
                self._storage.require_room(len(data))
                try:
                    _append(path, data)
                except OSError as error:
                    raise failure(error) from None
                self._storage.used += len(data)


def _append(path: Path, data: bytes) -> None:
    """Writes all of the data to the disk, or nothing. Raises OSError."""
    with open(path, "ab", buffering=0, opener=opener) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise
