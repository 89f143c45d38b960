"""Writes the outcomes of a batch to the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from ...errors import StoreFailure
from ...types import Json
from .storage import Storage, failure, private_opener


class Results:
    """The outcomes of a batch, in a file of answers and a file of errors.

    An outcome counts once it is on the disk. Outcomes that the files have already count, but a last line that is not
    complete is cut off.
    """

    def __init__(
        self, storage: Storage, paths: Sequence[Path], in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        """Reads the outcomes that the files have already.

        Args:
            storage: The storage of the files.
            paths: The paths of the file of answers and the file of errors.
            in_thread: Runs a function in the thread of `storage`.

        Raises:
            OSError: A file cannot be read.
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
            with open(path, "ab+", opener=private_opener) as file:
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
        """Adds the outcome of a line, which `flush` will write."""
        self._add(outcome)
        self._pending[failed].append(orjson.dumps(outcome, option=orjson.OPT_APPEND_NEWLINE))

    def _add(self, outcome: Json) -> None:
        self.done.add(outcome["custom_id"])
        self.unsent += outcome["error"] is not None

    async def flush(self) -> None:
        """Waits until all outcomes so far are on the disk. Outcomes that are added meanwhile are written together.

        Raises StoreFailure if they cannot be written, and then again in each later call.
        """
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
    """Appends data to a file and waits until it is on the disk. Raises OSError, and then appends nothing."""
    with open(path, "ab", buffering=0, opener=private_opener) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise
