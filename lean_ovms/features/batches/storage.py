"""The directory of --files_path, with uploaded files, batches, and the results of batches.

ID.json has an object of the API and its owner, and is replaced atomically. ID.data has the bytes of a file. Ids cannot
be guessed, so whoever knows one may use the object, as with responses; lists have only the objects of the same client.
Methods that change something wait for the disk, and are called in one thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import orjson

from ...api.fields import Values
from ...api.stored_objects import Page
from ...config import Config
from ...errors import BadRequest, NotFound, StoreFailure, StoreFull, store_failure
from ...media.file_slice import FileSlice
from ...types import Json
from ...types.push import Sink
from ...util import atomic_file
from ...util.files import open_regular, opener, read_bytes, take_lock
from .feature import BatchOptions

logger = logging.getLogger("lean_ovms.batches")

FILE, BATCH = "file", "batch"
"""The values of `object` in stored entries."""
UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
OF_BATCH = ("status", "created_at", "input_file_id", "request_counts")
MEMBERS = {FILE: ("bytes", "created_at", "expires_at")}
"""The members of stored objects that are used here; objects of any other kind are batches."""
RETENTION_S = 30 * 24 * 3600
"""Seconds for which batches and their files are kept, as at OpenAI."""
PIECE = 1 << 18
"""The most bytes that are read or written at once."""
PRIVATE = 0o600
"""The permissions of all files, which contain prompts and answers; the directory may have been made by an operator."""
private_opener = partial(opener, mode=PRIVATE)
"""The `opener` of `open` for files with these permissions."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a batch: the object that clients get, and further data that is stored with it."""

    owner: str
    """The name of the client that created it."""
    body: Json
    """The object that clients get."""
    keep_s: int = RETENTION_S
    """The seconds for which the results of a batch are kept."""

    def to_json(self) -> str:
        """Returns the JSON text that is stored for the entry."""
        return orjson.dumps(asdict(self)).decode()

    @property
    def expires(self) -> float:
        """The time of its deletion, in seconds since 1970."""
        if self.body["object"] == FILE:
            return float(self.body["expires_at"] or "inf")
        return float("inf") if self.body["status"] in UNFINISHED else self.body["created_at"] + float(RETENTION_S)


class Storage:
    """Stores files and batches in the directory."""

    def __init__(self, config: Config) -> None:
        options = config.of(BatchOptions)
        self._directory = Path(options.files_path)
        self._most_bytes = options.max_files_mb << 20
        self._most = options.max_files_per_client
        self._entries: dict[str, Entry] = {}
        self._lock = -1
        self.used = 0
        """The bytes of all files together."""

    def open(self) -> bool:
        """Locks and reads the directory. Returns False if another server uses it. Raises OSError."""
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not take_lock(descriptor):
                os.close(descriptor)
                return False
        except OSError as error:  # the file system does not support locks
            logger.warning("--files_path cannot be locked: %s", error.strerror)
        self._lock = descriptor
        try:
            self._read()
        except BaseException:
            self.close()  # otherwise a further attempt would find the directory locked
            raise
        return True

    def _read(self) -> None:
        """Reads the directory, and deletes what has expired or is incomplete. Raises OSError."""
        for path in self._directory.glob("*.json"):
            try:
                entry = Entry(**orjson.loads(read_bytes(path)))
                for member in ("id", *MEMBERS.get(entry.body["object"], OF_BATCH)):
                    _ = entry.body[member]
                self._entries[entry.body["id"]] = entry
            except (OSError, ValueError, TypeError, KeyError):
                logger.error("%s is damaged and was ignored", path)
        sizes = {path.stem: path.stat().st_size for path in self._directory.glob(f"{FILE}-*.data")}
        self.used = sum(sizes.values())
        for name, entry in list(self._entries.items()):
            if entry.body["object"] == FILE and sizes.get(name) != entry.body["bytes"]:
                self._drop(name)  # the file's upload was interrupted
        self._drop_expired()

    def close(self) -> None:
        """Unlocks the directory for other servers. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- what is there

    def find(self, kind: str, name: str) -> Entry:
        """Returns the file or the batch with an id. Raises NotFound."""
        entry = self._entries.get(name)
        if entry is None or entry.body["object"] != kind or entry.expires <= time.time():
            raise NotFound(f"No {kind} with id {name[:100]!r}.")
        return entry

    def page(self, kind: str, owner: str, query: Values, purpose: str | None = None) -> Page:
        """Returns one page of the files, or of the batches, of a client.

        Args:
            kind: FILE or BATCH.
            owner: The name of the client.
            query: The values of the query's fields: order ("asc" or "desc"), after (the id of the last object of the
                page before, or None) and limit.
            purpose: The purpose of the files to return; None for all files.

        Returns:
            The id and the JSON of each object, and whether there are more of them.

        Raises:
            BadRequest: After is not the id of an object in this list.
        """
        bodies = self.of_client(kind, owner, purpose)
        if query["order"] == "asc":
            bodies.reverse()
        if query["after"] is not None:
            places = [place for place, body in enumerate(bodies) if body["id"] == query["after"]]
            if not places:
                raise BadRequest(f"after is not the id of a {kind} in this list", param="after")
            bodies = bodies[places[0] + 1 :]
        page = [(body["id"], orjson.dumps(body)) for body in bodies[: query["limit"]]]
        return page, len(bodies) > query["limit"]

    def of_client(self, kind: str, owner: str, purpose: str | None = None) -> list[Json]:
        """Returns all files or batches of a client, the newest first."""
        now = time.time()
        bodies = [
            entry.body
            for entry in list(self._entries.values())
            if (entry.owner, entry.body["object"]) == (owner, kind)
            and entry.expires > now
            and purpose in (None, entry.body.get("purpose"))
        ]
        return sorted(bodies, key=lambda body: (body["created_at"], body["id"]), reverse=True)

    def unfinished(self) -> list[Entry]:
        """Returns the batches that are not finished, the oldest first."""
        entries = [entry for entry in list(self._entries.values()) if entry.body.get("status") in UNFINISHED]
        return sorted(entries, key=lambda entry: float(entry.body["created_at"]))

    def data(self, name: str) -> Path:
        """Returns the path of a file's bytes."""
        return self._directory / f"{name}.data"

    def open_data(self, name: str) -> BinaryIO:
        """Opens a file for reading. Raises NotFound."""
        try:
            return open_regular(self.data(name))
        except OSError:
            raise NotFound(f"The content of file {name[:100]!r} was deleted.") from None

    # --- changes

    def require_room(self, size: int) -> None:
        """Raises StoreFailure if there is no room for `size` more bytes."""
        if self.used + size > self._most_bytes:
            raise StoreFull("The files on this server exceed its limit (--max_files_mb); delete some.")

    def add(self, entry: Entry, data: memoryview | FileSlice | None = None) -> None:
        """Stores a new batch, or a new file with its data. Raises StoreFailure and BadRequest."""
        self._drop_expired()
        kind = entry.body["object"]
        if sum((one.owner, one.body["object"]) == (entry.owner, kind) for one in self._entries.values()) >= self._most:
            raise BadRequest(
                f"you already have {self._most} {kind} objects, this server's limit; delete some", code="too_many_files"
            )
        if data is not None:
            self.require_room(len(data))
        self.put(entry, entry.to_json())
        if data is not None:
            self._write(entry.body["id"], data)

    def _write(self, name: str, data: memoryview | FileSlice) -> None:
        try:
            with open(self.data(name), "xb", opener=private_opener) as file:
                for start in range(0, len(data), PIECE):
                    file.write(data[start : start + PIECE])
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.data(name).unlink(missing_ok=True)
            self._drop(name)
            raise failure(error) from None
        self.used += len(data)

    def put(self, entry: Entry, text: str) -> None:
        """Stores an object; its caller makes the text, as other threads may change the entry. Raises StoreFailure."""
        name = entry.body["id"]
        try:
            atomic_file.write(self._directory / f"{name}.json", text, PRIVATE)
        except OSError as error:
            raise failure(error) from None
        self._entries[name] = entry

    def keep(self, entry: Entry) -> None:
        """Adds a file or a batch in memory only, if it cannot be written now. `put_kept` stores it later."""
        self._entries[entry.body["id"]] = entry

    def put_kept(self, entry: Entry) -> None:
        """Stores an entry that `keep` has added, unless it was deleted meanwhile. Raises StoreFailure."""
        if self._entries.get(entry.body["id"]) is entry:
            self.put(entry, entry.to_json())

    def delete(self, name: str) -> None:
        """Deletes a file, or a finished batch. Raises BadRequest for the input file of a running batch."""
        batch = next((one.body["id"] for one in self.unfinished() if one.body["input_file_id"] == name), None)
        if batch:
            raise BadRequest(f"The file is the input of {batch}, which is not finished; cancel that batch first.")
        self._drop(name)

    def _drop(self, name: str) -> None:
        self._entries.pop(name, None)
        self.drop_data(name)
        (self._directory / f"{name}.json").unlink(missing_ok=True)

    def drop_data(self, name: str) -> None:
        """Deletes the bytes of a file. Idempotent."""
        path = self.data(name)
        if path.exists():
            self.used -= path.stat().st_size
            path.unlink()

    def _drop_expired(self) -> None:
        now = time.time()
        inputs = {one.body["input_file_id"] for one in self.unfinished()}
        for name in [name for name, one in self._entries.items() if one.expires <= now and name not in inputs]:
            self._drop(name)


def failure(error: OSError) -> StoreFailure:
    """Logs an error of the disk, and returns the error for clients."""
    logger.error("--files_path cannot be written: %s", error)
    return store_failure(
        error, "The disk with this server's files is full; delete some files.", "A file could not be stored."
    )


class FileStream:
    """A stream of the bytes of several files, which it closes in the end."""

    def __init__(self, files: Sequence[BinaryIO], read: Callable[[BinaryIO], bytes]) -> None:
        """Keeps files in their order. A thread calls `read` for the next piece of one, b"" at its end."""
        self._files = files
        self._read = read

    async def push_to(self, sink: Sink[bytes]) -> None:
        for file in self._files:
            while piece := await asyncio.to_thread(self._read, file):
                await sink.send(piece)

    async def aclose(self) -> None:
        for file in self._files:
            file.close()
