"""Counts the usage of each API key by model, in the file of --api_key_usage_file, which survives restarts.

The file has sums, to which new usage is added periodically and at the end, so that several servers can share a file. A
crash loses what has not been written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from ...errors import WrongOptions
from ...observability.records import GenerationRecord
from ...util import atomic_file, files

logger = logging.getLogger("lean_ovms.keys")

WRITE_S = 60.0
"""Seconds between two writes."""


@dataclass(slots=True)
class KeyUsage:
    """The usage of one model with one API key."""

    name: str
    """The name of the key; empty for the only key of all clients."""
    model: str = ""
    """The name of the model; empty for requests without a model."""
    requests: int = 0
    """The number of finished requests."""
    rejections: int = 0
    """The number of requests that exceeded the limits of the key."""
    prompt_tokens: int = 0
    """The number of prompt tokens."""
    cached_tokens: int = 0
    """The number of prompt tokens that were cached."""
    completion_tokens: int = 0
    """The number of generated tokens."""

    @property
    def counts(self) -> dict[str, int]:
        """The values that can be summed, by name."""
        found = asdict(self)
        del found["name"], found["model"]
        return found

    def add(self, other: KeyUsage) -> None:
        """Adds another usage to this one."""
        for name, count in other.counts.items():
            setattr(self, name, getattr(self, name) + count)

    def count(self, generation: GenerationRecord) -> None:
        """Adds the tokens of a generation."""
        self.prompt_tokens += generation.prompt_tokens
        self.cached_tokens += generation.cached_tokens or 0
        self.completion_tokens += generation.completion_tokens


@dataclass(slots=True)
class UsageTable:
    """The sums of usage by key and model."""

    since: float = field(default_factory=time.time)
    """The Unix time at which counting began."""
    sums: dict[tuple[str, str], KeyUsage] = field(default_factory=dict)
    """The sums, by the names of the key and the model."""

    def of(self, name: str, model: str) -> KeyUsage:
        """Returns the sums of a key and a model ("" for requests without a model). The caller may add to them."""
        return self.sums.setdefault((name, model), KeyUsage(name, model))

    def add(self, other: UsageTable) -> UsageTable:
        """Adds the sums of another table to this one, and returns this one."""
        self.since = min(self.since, other.since)
        for place, usage in other.sums.items():
            self.of(*place).add(usage)
        return self


def read_usage(path: Path) -> UsageTable:
    """Reads the table in a file; returns an empty one if there is no file. Raises OSError and ValueError."""
    try:
        content = orjson.loads(files.read_bytes(path))
    except FileNotFoundError:
        return UsageTable()
    try:
        rows = [KeyUsage(**row) for row in content["usage"]]
        if not all(type(count) is int for row in rows for count in row.counts.values()):
            raise ValueError("a count is not an integer")
        return UsageTable(float(content["since"]), {(row.name, row.model): row for row in rows})
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from None


class KeyUsages:
    """Counts the usage since the file began, or since the server began if there is no file. Raises WrongOptions."""

    def __init__(self, file: str) -> None:
        self._path = Path(file) if file else None
        self._new = UsageTable()
        self._writing = UsageTable()
        self._kept = self._read(self._path) if self._path else UsageTable()
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    @staticmethod
    def _read(path: Path) -> UsageTable:
        try:
            return _add_to(path, UsageTable())  # also checks now whether the file can be written
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise WrongOptions(f"--api_key_usage_file {path}: {reason}") from None

    def of(self, name: str, model: str) -> KeyUsage:
        """Returns a key's and model's sums, to which the caller adds; they are written within `WRITE_S` seconds."""
        if self._path is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_later())
        return self._new.of(name, model)

    def total(self) -> UsageTable:
        """Returns all sums: those in the file, those being written, and new ones."""
        return UsageTable(self._kept.since).add(self._kept).add(self._writing).add(self._new)

    async def _write_later(self) -> None:
        await asyncio.sleep(WRITE_S)
        self._task = None  # from now on another task writes what is added
        await self._write()

    async def _write(self) -> None:
        """Adds the new sums to the file."""
        async with self._one_at_a_time:
            self._writing, self._new = self._new.add(self._writing), UsageTable()
            if self._path is None or not self._writing.sums:
                return
            try:
                self._kept = await asyncio.to_thread(_add_to, self._path, self._writing)
                self._writing = UsageTable()
            except (OSError, ValueError) as error:  # it is written together with what is added later
                logger.error("--api_key_usage_file %s cannot be written: %s", self._path, error)

    async def close(self) -> None:
        """Writes the new sums. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        await self._write()


def _add_to(path: Path, new: UsageTable) -> UsageTable:
    """Adds a table to the one in a file, and returns the sums. Raises OSError and ValueError."""
    with atomic_file.lock(path.parent):
        table = read_usage(path).add(new)
        rows = [asdict(usage) for usage in table.sums.values()]
        content = orjson.dumps({"since": table.since, "usage": rows}, option=orjson.OPT_INDENT_2)
        atomic_file.write(path, content.decode() + "\n")
    return table
