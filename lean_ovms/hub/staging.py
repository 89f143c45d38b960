"""Where a model grows until it is whole: a hidden directory in the repository, one per model, held by one process.

Nothing under the model's own name exists before every byte of it has been checked. What is here outlives the process,
so that the next pull goes on with it. It must not know hubs: it deals in files with sizes and hashes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from .client import PullError

log = logging.getLogger("lean_ovms.hub")

HIDDEN = ".pull"
"""The directory in a repository under which all staging is."""

SPARE_BYTES = 16 << 20
"""Free space that a pull leaves."""

CHUNK = 1 << 20
LOOK_S = 0.5
"""How often to look whether another pull of the same model is over."""


class Expected(Protocol):
    """A file as it should become. sha256: of its content, or ""; blob: git's SHA-1 of it, or ""."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def blob(self) -> str: ...


File = TypeVar("File", bound=Expected)


class Staging:
    """Made by `held`. ready: where whole files are, laid out as in the model."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ready = root / "ready"
        self._parts = root / "parts"

    def begin(self, files: Iterable[File]) -> list[File]:
        """Keep what is of use for files, drop the rest; the files that are still to be fetched, wholly or partly."""
        files = list(files)
        self.ready.mkdir(exist_ok=True)
        self._parts.mkdir(exist_ok=True)
        wanted = {self.ready / file.path for file in files}
        parts = {self.part(file) for file in files}
        for path in [*self.ready.rglob("*"), *self._parts.iterdir()]:
            if not path.is_dir() and path not in wanted and path not in parts:
                path.unlink()
        return [file for file in files if not matches(self.ready / file.path, file)]

    def part(self, file: Expected) -> Path:
        """Where file grows: named after its content, so that another commit's file is never taken for it."""
        name = hashlib.sha256(f"{file.path}\0{file.size}\0{file.sha256 or file.blob}".encode()).hexdigest()
        return self._parts / name[:32]

    def missing_bytes(self, files: Iterable[Expected]) -> int:
        """What is still to come of these files."""
        return sum(file.size - min(file.size, _size(self.part(file))) for file in files)

    def accept(self, file: Expected) -> bool:
        """Move a part that has become file to its place; False, and it is gone, if it is something else."""
        part, place = self.part(file), self.ready / file.path
        if not matches(part, file):
            part.unlink(missing_ok=True)
            return False
        _sync(part)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, place)
        return True

    def publish(self, target: Path) -> None:
        """Give the whole tree its name at once. What is there already is replaced."""
        target.parent.mkdir(parents=True, exist_ok=True)
        for directory in [self.ready, *(path for path in self.ready.rglob("*") if path.is_dir())]:
            _sync(directory)
        if target.exists():
            aside = self.root / "replaced"
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(target, aside)
        os.rename(self.ready, target)
        _sync(target.parent)

    def publish_files(self, target: Path, names: list[str]) -> None:
        """Put single files into target, the first of them last: it is the one that is looked for."""
        for name in reversed(names):
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.ready / name, place)
            _sync(place.parent)


@contextlib.contextmanager
def held(
    repository: Path,
    name: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    waits: Callable[[], None] = lambda: None,
) -> Iterator[Staging]:
    """The staging of that name, for us alone until the end; it is kept after a failure and gone after success.

    While another process has it, waits is called once and we wait: the kernel frees it when that process ends.
    """
    root = repository / HIDDEN / name
    lock = _lock(root, sleep, waits)
    try:
        yield Staging(root)
        shutil.rmtree(root, ignore_errors=True)
        with contextlib.suppress(OSError):
            root.parent.rmdir()
    finally:
        os.close(lock)


def _lock(root: Path, sleep: Callable[[float], None], waits: Callable[[], None]) -> int:
    """An open, locked descriptor of the directory root, which exists."""
    told = False
    while True:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # its holder has just finished
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(lock, root):
                return lock
        except BlockingIOError:
            if not told:
                waits()
            told = True
            sleep(LOOK_S)
        except OSError as error:  # a file system without locks
            log.warning("%s cannot be locked (%s): do not pull the same model twice at once", root, error.strerror)
            return lock
        os.close(lock)


def _same(descriptor: int, path: Path) -> bool:
    """The directory was not removed, and perhaps made anew, while we waited for it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def check_room(directory: Path, missing_bytes: int, what: str) -> None:
    """Raise PullError unless so many bytes fit."""
    free = shutil.disk_usage(directory).free
    if missing_bytes + SPARE_BYTES > free:
        raise PullError(f"{what} needs {size(missing_bytes)}, but only {size(free)} are free in {directory}",
                        temporary=True)  # fmt: skip


def matches(path: Path, file: Expected) -> bool:
    """Whether the content of path is file: size, and whichever hash is known."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if not file.sha256 and not file.blob:
        return True
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == (file.sha256 or file.blob)


def size(count: int) -> str:
    """Bytes for people."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sync(path: Path) -> None:
    """Have path on the disk before what follows, so that a power cut cannot leave a name without its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
