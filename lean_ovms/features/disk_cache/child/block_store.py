"""Stores blocks on disk by key, in the segments of one directory and within a limit of bytes.

The files are ROOT/<fingerprint>/<segment>.data and .index, where the fingerprint says for which network and machine
blocks are valid. The limit is for all files in ROOT, for all models and writers. To make room, whole segments are
removed, least recently used first.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from . import segment as segments
from .segment import DATA, INDEX, Bytes, Damaged, DiskSegment, Place, SegmentWriter, nbytes

log = logging.getLogger(__name__)

PARTS = 64
"""The number of segments within the limit of bytes. Whole segments are removed, so each is a small part of it."""
MIN_SEGMENT, MAX_SEGMENT = 1 << 16, 256 << 20
PAUSE_S = 60.0
"""Seconds without writing after an error such as a full disk, and between two reports that the limit is too low."""
SEGMENT_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}")
DIRECTORY_NAME = re.compile(r"[0-9a-f]{64}")


class BlockStore:
    """The stored blocks of one network. Any thread may ask whether it contains a key; one thread writes."""

    def __init__(self, root: Path, fingerprint: bytes, limit: int) -> None:
        """Finds the blocks that are there.

        Args:
            root: The directory, for the blocks of all networks.
            fingerprint: Identifies the network and the machine for which blocks are valid.
            limit: The most bytes of all files in the directory.

        Raises:
            StartError: The directory cannot be used.
        """
        self.written_blocks = self.written_bytes = self.removed_bytes = 0
        """Blocks and bytes that were written, and bytes that were removed to make room, since the start."""
        self.errors = 0
        """Files and blocks that could not be read or written since the start."""
        self._root = root
        self._directory = root / fingerprint.hex()
        self._fingerprint = fingerprint
        self.limit = limit
        self._segment_bytes = min(MAX_SEGMENT, max(MIN_SEGMENT, limit // PARTS))
        self._places: dict[bytes, Place] = {}
        self._segments: dict[str, DiskSegment] = {}
        self._own: set[str] = set()
        self._writer: SegmentWriter | None = None
        self._pause_until = self._silent_until = 0.0
        self._lock = Lock()  # guards the segments, which one thread reads and another removes
        segments.shared_directory(root, "--prefix_cache_path")
        segments.private_directory(self._directory, "--prefix_cache_path")
        self.refresh()

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def size(self) -> int:
        """The size of this network's blocks in bytes."""
        return sum(segment.bytes for segment in list(self._segments.values()))

    def refresh(self) -> None:
        """Finds the blocks that other processes have written or removed since the last call."""
        try:
            names = {name.removesuffix(INDEX) for name in os.listdir(self._directory) if name.endswith(INDEX)}
        except FileNotFoundError:  # removed while it is in use: the cache begins anew
            self.close()
            segments.private_directory(self._directory, "--prefix_cache_path")
            self._report("%s was removed, and has been created again", self._directory)
            names = set()
        except OSError as error:
            self._report("%s: %s", self._directory, error.strerror)
            names = set()
        with self._lock:
            for name in self._segments.keys() - names:
                self._forget(name)
            for name in sorted(names):
                if SEGMENT_NAME.fullmatch(name) and name not in self._own:
                    self._read_index(name)

    def read(self, key: bytes, buffers: Sequence[Bytes]) -> bool:
        """Reads a block into buffers. Returns False if it is missing or not valid."""
        place = self._places.get(key)
        if place is None:
            return False
        try:
            place.segment.read(key, place, buffers)
        except FileNotFoundError:  # another process has removed it
            self._lose(place.segment)
            return False
        except (OSError, Damaged) as error:
            self._report("%s: %s; its blocks are not used", place.segment.path, error)
            self._lose(place.segment)
            return False
        return True

    def write(self, key: bytes, buffers: Sequence[Bytes]) -> bool:
        """Writes a block unless it is there already. Returns False if it cannot be written."""
        if key in self._places:
            return True
        if time.monotonic() < self._pause_until:
            return False
        size = nbytes(buffers)
        try:
            if self._writer is not None and self._writer.size + size > self._segment_bytes:
                self.close()
            if self._writer is None:
                if not self._make_room(max(size, self._segment_bytes)):
                    self._report_lack(size)
                    return False
                self._begin_segment()
            assert self._writer is not None
            place = self._writer.add(key, buffers)
        except OSError as error:
            self.close()
            self._pause_until = time.monotonic() + PAUSE_S
            self._report("%s: %s; nothing will be written for %d s", self._directory, error.strerror or error, PAUSE_S)
            return False
        self.written_blocks += 1
        self.written_bytes += size
        self._places[key] = place
        return True

    def discard(self, key: bytes) -> None:
        """Removes a block together with its whole segment.

        If another process is still writing the segment, this process just no longer uses it.
        """
        place = self._places.get(key)
        if place is None:
            return
        if self._writer is not None and self._writer.segment is place.segment:
            self.close()
        if not self._remove(place.segment.path):
            self._lose(place.segment)

    def clear(self) -> None:
        """Removes this network's blocks, except the segments that other processes are writing."""
        self.close()
        for name in list(self._segments):
            self._remove(self._directory / name)
        self.refresh()

    def close(self) -> None:
        """Closes the segment that is being written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _begin_segment(self) -> None:
        name = f"{time.time_ns():016x}-{secrets.token_hex(4)}"
        segment = DiskSegment(self._directory / name, self._fingerprint)
        self._own.add(name)
        self._writer = SegmentWriter(segment, self._fingerprint)
        self._segments[name] = segment

    def _read_index(self, name: str) -> None:
        segment = self._segments.setdefault(name, DiskSegment(self._directory / name, self._fingerprint))
        try:
            for key, place in segment.news():
                self._places.setdefault(key, place)
        except FileNotFoundError:
            self._forget(name)
        except (OSError, Damaged) as error:
            self._report("%s: %s; the rest of it is not used", segment.path, error)

    def _make_room(self, size: int) -> bool:
        """Removes segments until there is room for `size` bytes. Returns False if that is not possible."""
        found = []
        for directory in self._root.iterdir():
            if DIRECTORY_NAME.fullmatch(directory.name) and directory.is_dir() and not directory.is_symlink():
                found += list(_sizes(directory))
        written = {path for _, _, path in found if segments.is_written(path)}
        used = sum(max(one, self._segment_bytes) if path in written else one for _, one, path in found)
        for _, one, path in sorted(found):
            if used + size <= self.limit:
                break
            if path not in written and self._remove(path):
                used -= one
        return used + size <= self.limit

    def _remove(self, path: Path) -> bool:
        try:
            size = path.with_suffix(DATA).stat().st_size
        except OSError:
            size = 0
        if not segments.remove(path):
            return False
        self.removed_bytes += size
        if path.parent == self._directory:
            with self._lock:
                self._forget(path.name)
        return True

    def _lose(self, segment: DiskSegment) -> None:
        """Forgets the blocks of a segment that cannot be read."""
        with self._lock:
            segment.whole = False
            self._forget_blocks(segment)

    def _forget(self, name: str) -> None:
        segment = self._segments.pop(name, None)
        self._own.discard(name)
        if segment is not None:
            self._forget_blocks(segment)

    def _forget_blocks(self, segment: DiskSegment) -> None:
        for key in segment.keys:
            place = self._places.get(key)
            if place is not None and place.segment is segment:
                del self._places[key]
        segment.keys, segment.bytes = [], 0

    def _report_lack(self, size: int) -> None:
        """Reports, at most once in a while, that the limit leaves no room for a block of `size` bytes."""
        if (now := time.monotonic()) < self._silent_until:
            self.errors += 1
            return
        self._silent_until = now + PAUSE_S
        text = "--prefix_cache_disk_gb (%d bytes) leaves no room for a block of %d bytes in %s"
        self._report(text, self.limit, size, self._root)

    def _report(self, text: str, *values: object) -> None:
        self.errors += 1
        log.warning("prefix cache on disk: " + text, *values)


def _sizes(directory: Path) -> list[tuple[float, int, Path]]:
    """Returns the time of last use, the size in bytes and the path of each segment in a directory."""
    found: dict[str, tuple[float, int]] = {}
    try:
        with os.scandir(directory) as files:
            for file in files:
                name, _, suffix = file.name.rpartition(".")
                if not SEGMENT_NAME.fullmatch(name) or f".{suffix}" not in (DATA, INDEX):
                    continue
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                used, size = found.get(name, (0.0, 0))
                found[name] = max(used, status.st_mtime), size + status.st_size
    except OSError:
        pass
    return [(used, size, directory / name) for name, (used, size) in found.items()]
