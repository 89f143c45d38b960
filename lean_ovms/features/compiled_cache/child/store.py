"""The directory of cached networks. Each is a folder, which is added and removed atomically.

Only the owner may write there, since whoever can change a network decides what a server answers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ....util.files import OTHERS, is_private_directory, open_regular, read_bytes, take_lock

log = logging.getLogger("lean_ovms.compiled_cache")

FOLDER = "paged_networks"
"""The folder in --cache_dir."""
GRAPH, WEIGHTS, ABOUT = "network.xml", "network.bin", "about.json"
"""The files of a network: its operations, its constants, and a KeptNetwork."""
UNFINISHED = "tmp_"
"""The prefix of the names of folders that are being written."""
CHECK_BYTES = 8
"""The size of a checksum as text."""
PIECE = 1 << 18
"""Bytes that are read at once."""


class NotAsWritten(Exception):
    """Raised if a cached network has changed since it was written."""


@dataclass(frozen=True, slots=True)
class KeptNetwork:
    """The entry of a network in the cache, or the reason why the network cannot be cached."""

    heads: dict[str, dict[str, int]] = field(default_factory=dict)
    """The sizes of the heads of each attention by its name, which OpenVINO's files lack."""
    graph: int = 0
    """The checksum of the file with the operations."""
    weights: int = 0
    """The checksum of the file with the constants."""
    refused: str = ""
    """Why the network cannot be cached; "" if it is in the cache."""


class NetworkStore:
    """The cache of networks in one directory."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        """Keeps the directory, which must exist, and the most bytes of all networks together; nothing is read."""
        self.folder = directory / FOLDER
        self.most_bytes = most_bytes

    def is_safe(self) -> bool:
        """Creates the folder, and returns whether nobody else can write to it. If somebody can, the log says so."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            around, own = self.folder.parent.stat(), self.folder.lstat()
        except OSError as error:
            log.warning("compiled networks are not stored: %s", error)
            return False
        shared = around.st_mode & OTHERS and not around.st_mode & stat.S_ISVTX
        if shared or not is_private_directory(own):
            text = (
                "compiled networks are not stored in %s, since other users can write there; "
                "chmod go-w %s %s prevents that"
            )
            log.warning(text, self.folder, self.folder.parent, self.folder)
            return False
        return True

    def find(self, key: str) -> KeptNetwork | None:
        """Returns the entry of a network, or None if there is none. The network becomes the most recently used one."""
        file = self.path(key) / ABOUT
        try:
            text = read_bytes(file)
            if text[:CHECK_BYTES] != _check(text[CHECK_BYTES:]):
                raise ValueError("its description has changed")
            found = KeptNetwork(**json.loads(text[CHECK_BYTES:]))
            os.utime(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            log.info("a stored network is damaged and was removed: %s", error)
            self.remove(key)
            return None
        return found

    def path(self, key: str) -> Path:
        """Returns the folder of a network."""
        return self.folder / key

    def remove(self, key: str) -> None:
        """Removes a network."""
        shutil.rmtree(self.path(key), ignore_errors=True)

    @contextmanager
    def writing(self, key: str) -> Iterator[Path | None]:
        """Yields an empty folder for writing a network, or None if there is no folder or another process writes it.

        A process locks the folder that it writes. The lock ends with the process, so a folder without one is abandoned.
        """
        for folder in self.folder.glob(f"{UNFINISHED}*"):
            if (lock := _lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
        folder, lock = self.folder / f"{UNFINISHED}{key}", None
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700)
            lock = _lock(folder)
        if lock is None:
            yield None
            return
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)

    def publish(self, key: str, folder: Path, entry: KeptNetwork) -> None:
        """Adds a written folder to the cache, and removes other networks to make room. Raises OSError."""
        if entry.refused:
            for file in folder.iterdir():
                file.unlink()
        elif _size(folder) > self.most_bytes:
            raise OSError(f"its {_size(folder)} bytes exceed the limit of {self.most_bytes} bytes (--cache_dir_gb)")
        text = json.dumps(asdict(entry)).encode()
        (folder / ABOUT).write_bytes(_check(text) + text)
        folder.rename(self.path(key))
        self._make_room()

    def _make_room(self) -> None:
        """Removes the least recently used networks until the limit of bytes is met."""
        found = []
        for about in self.folder.glob(f"[!{UNFINISHED[0]}]*/{ABOUT}"):
            with contextlib.suppress(OSError):  # another process may have removed it
                found.append((about.stat().st_mtime, about.parent.name, _size(about.parent)))
        total = sum(size for _, _, size in found)
        for _, key, size in sorted(found):
            if total <= self.most_bytes:
                return
            log.info("a stored network was removed, since all of them exceeded --cache_dir_gb")
            self.remove(key)
            total -= size


def _lock(folder: Path) -> int | None:
    """Locks a folder. Returns its descriptor, or None if another process has locked, removed or renamed it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        if take_lock(descriptor) and os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("compiled networks are not stored, since %s cannot be locked: %s", folder, error.strerror)
    os.close(descriptor)
    return None


def _check(text: bytes) -> bytes:
    """Returns a checksum line that is put before a text in a file, and shows that the text is complete."""
    return b"%08x" % zlib.crc32(text)


def _size(folder: Path) -> int:
    """Returns the size of the files in a folder in bytes. Raises OSError."""
    return sum(file.stat().st_size for file in folder.iterdir())


def checksum(file: Path) -> int:
    """Returns a checksum of a file, which is read in pieces, as it may have many GB. Raises OSError."""
    found = 0
    with open_regular(file) as opened:
        while piece := opened.read(PIECE):
            found = zlib.crc32(piece, found)
    return found
