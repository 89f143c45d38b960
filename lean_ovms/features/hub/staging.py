"""Staging directories: hidden directories in the repository, one for each model that is being pulled.

Nothing exists under the model's own name before every byte has been checked. A staging directory is locked by one
process, and outlives it, so that the next pull resumes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...util.files import take_lock
from ...util.sizes import human_size
from .client import PullError, RemoteFile

log = logging.getLogger("lean_ovms.hub")

HIDDEN = ".pull"
"""The directory in a repository under which all staging is."""

SPARE_BYTES = 16 << 20
"""Free space that a pull leaves on the disk."""

CHUNK = 1 << 20
POLL_S = 0.5
"""Seconds between two attempts to lock a model that another process is pulling."""


class Staging:
    """The staging directory of one model, which `locked` makes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ready = root / "ready"
        """The directory of whole files, laid out as in the model."""
        self._parts = root / "parts"

    def prepare(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        """Deletes everything that does not belong to `files`. Returns the files that are not complete yet."""
        files = list(files)
        self.ready.mkdir(exist_ok=True)
        self._parts.mkdir(exist_ok=True)
        wanted = {self.ready / file.path for file in files}
        parts = {self.part(file) for file in files}
        for path in [*self.ready.rglob("*"), *self._parts.iterdir()]:
            if not path.is_dir() and path not in wanted and path not in parts:
                path.unlink()
        return [file for file in files if not matches(self.ready / file.path, file)]

    def part(self, file: RemoteFile) -> Path:
        """Returns the path of a download. The name is a hash, so another commit's file is never resumed."""
        name = hashlib.sha256(f"{file.path}\0{file.size}\0{file.digest}".encode()).hexdigest()
        return self._parts / name[:32]

    def missing_bytes(self, files: Iterable[RemoteFile]) -> int:
        """Returns the bytes of these files that still have to be fetched."""
        return sum(file.size - min(file.size, _size(self.part(file))) for file in files)

    def accept(self, file: RemoteFile) -> bool:
        """Moves a complete file to its place. If its content is wrong, it is deleted, and the method returns False."""
        part, place = self.part(file), self.ready / file.path
        if not matches(part, file):
            part.unlink(missing_ok=True)
            return False
        _sync(part)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, place)
        return True

    def publish(self, target: Path) -> None:
        """Renames the whole directory to `target` atomically, and replaces an existing one."""
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
        """Moves single files into `target`, the first name last, so that its presence means that all are there."""
        for name in reversed(names):
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.ready / name, place)
            _sync(place.parent)


@contextlib.contextmanager
def locked(repository: Path, source: str) -> Iterator[Staging]:
    """Locks and yields the staging directory of a model, which is kept after a failure and removed after success.

    The kernel releases the lock when the process ends.
    """
    root = repository / HIDDEN / source.replace("/", "--")
    descriptor = _lock(root, source)
    try:
        yield Staging(root)
        shutil.rmtree(root, ignore_errors=True)
        with contextlib.suppress(OSError):
            root.parent.rmdir()
    finally:
        os.close(descriptor)


def _lock(root: Path, source: str) -> int:
    """Makes the directory `root` if it is missing, waits until it can be locked, and returns its descriptor."""
    notified = False
    while True:
        root.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # the process that held the lock has just finished
            continue
        try:
            if not take_lock(descriptor):
                if not notified:
                    log.info("another process is pulling %s; waiting until it is done", source)
                notified = True
                time.sleep(POLL_S)
            elif _same(descriptor, root):
                return descriptor
        except OSError as error:  # the file system does not support locks
            log.warning(
                "%s cannot be locked (%s); do not pull the same model in two processes at once", root, error.strerror
            )
            return descriptor
        os.close(descriptor)


def _same(descriptor: int, path: Path) -> bool:
    """Returns whether a path still leads to the open directory, which another process may have removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def check_free_space(directory: Path, missing_bytes: int, what: str) -> None:
    """Raises PullError if the disk does not have room for `missing_bytes`."""
    free = shutil.disk_usage(directory).free
    if missing_bytes + SPARE_BYTES > free:
        needed = f"{what} needs {human_size(missing_bytes)}"
        only = f"{needed}, but only {human_size(free)} are free"
        raise PullError(f"{only} in {directory}", reason=only, temporary=True)


def matches(path: Path, file: RemoteFile) -> bool:
    """Returns whether the file at `path` has the size and the hash of `file`."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if not file.digest:
        return True
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == file.digest


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sync(path: Path) -> None:
    """Flushes path to the disk now, so that a power cut cannot leave a name without its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
