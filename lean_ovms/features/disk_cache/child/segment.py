"""A segment: a file of blocks with an index file that says where each block is. It is written once, from its beginning.

The bytes of a block are written before its record in the index, so a record refers to bytes that exist. After a crash
or a power cut, checksums of each record and each block show which of them are torn. Writer and readers may be different
processes; the writer holds a lock on the index while it writes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import StartError
from ....util.files import is_private_directory, require_regular, take_lock

MAGIC = b"LOVMSKV1"
FINGERPRINT = 32
"""The size in bytes of the fingerprint at the beginning of each index, and of a block's key."""
HEADER = len(MAGIC) + FINGERPRINT
RECORD = struct.Struct("<32sQQI")
CHECKSUM = struct.Struct("<I")
RECORD_BYTES = RECORD.size + CHECKSUM.size
MOST_BUFFERS = 512
"""Buffers of one system call; systems allow 1024."""
TOUCH_S = 1.0
DATA, INDEX = ".data", ".index"

Bytes = NDArray[np.uint8]


class Damaged(Exception):
    """Raised for a file that is torn, foreign or changed; the message says which."""


class Place(NamedTuple):
    """The place of a block in a segment."""

    segment: DiskSegment
    """The segment."""
    offset: int
    """The offset of its first byte."""
    size: int
    """The size of the block in bytes."""
    check: int
    """The checksum of the block."""


class DiskSegment:
    """One data file with its index."""

    def __init__(self, path: Path, fingerprint: bytes) -> None:
        """Keeps the path of both files without suffix, and the id of the network and machine. Nothing is read."""
        self.path = path
        self.keys: list[bytes] = []
        """The keys of its blocks, as far as the index was read."""
        self.bytes = 0
        """The size of these blocks."""
        self.whole = True
        """Whether all records of the index were valid; nothing is read after an invalid one."""
        self._fingerprint = fingerprint
        self._read = 0  # the bytes of the index that were read
        self._touched = 0.0

    def news(self) -> Iterator[tuple[bytes, Place]]:
        """Yields the keys and places of blocks that were added since the last call. Raises OSError and Damaged."""
        if not self.whole or self.path.with_suffix(INDEX).lstat().st_size < self._read + RECORD_BYTES:
            return
        file = open_file(self.path.with_suffix(INDEX), os.O_RDONLY)
        try:
            os.lseek(file, self._read, os.SEEK_SET)
            found = bytearray()
            while part := os.read(file, 1 << 20):
                found += part
        finally:
            os.close(file)
        if not self._read:
            if len(found) < HEADER:
                return  # its writer has just begun, or was killed then
            if found[:HEADER] != MAGIC + self._fingerprint:
                self.whole = False
                raise Damaged("it belongs to another model, or is not an index")
            self._read, found = HEADER, found[HEADER:]
        written = self.path.with_suffix(DATA).lstat().st_size  # a block is always written before its record
        for at in range(0, len(found) - RECORD_BYTES + 1, RECORD_BYTES):
            record = bytes(found[at : at + RECORD.size])
            if CHECKSUM.unpack_from(found, at + RECORD.size)[0] != zlib.crc32(record):
                self.whole = False
                raise Damaged("a record of the index is damaged")
            key, offset, size, check = RECORD.unpack(record)
            if offset + size > written:
                self.whole = False
                raise Damaged("a record of the index points past the end of the data")
            self._read += RECORD_BYTES
            self.keys.append(key)
            self.bytes += size
            yield key, Place(self, offset, size, check)

    def read(self, key: bytes, place: Place, buffers: Sequence[Bytes]) -> None:
        """Reads a block into buffers, which together have its size. Raises OSError and Damaged.

        The file is open only meanwhile: there may be more segments than a process may open files, and a removed file
        that is open takes disk space.
        """
        if place.size != nbytes(buffers):
            raise Damaged("a block does not have the size of this model's blocks")
        file = open_file(self.path.with_suffix(DATA), os.O_RDONLY)
        try:
            if not transfer(os.preadv, file, buffers, place.offset):
                raise Damaged("a block is truncated")
        finally:
            os.close(file)
        if checksum(key, buffers) != place.check:
            raise Damaged("a block is damaged")
        now = time.monotonic()
        if now > self._touched + TOUCH_S:
            self._touched = now
            with contextlib.suppress(OSError):  # another process may have removed it
                os.utime(self.path.with_suffix(DATA))


class SegmentWriter:
    """Writes one segment."""

    def __init__(self, segment: DiskSegment, fingerprint: bytes) -> None:
        """Creates the files of a segment. Raises OSError."""
        self.segment = segment
        self.size = 0
        """The bytes of its data so far."""
        self._index = open_file(segment.path.with_suffix(INDEX), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._data = -1
        try:
            with contextlib.suppress(OSError):  # without support for locks, other processes may remove the segment
                take_lock(self._index)
            self._data = open_file(segment.path.with_suffix(DATA), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            write_all(self._index, MAGIC + fingerprint)
        except BaseException:
            self.close()
            raise

    def add(self, key: bytes, buffers: Sequence[Bytes]) -> Place:
        """Appends a block, and returns its place. After an OSError, no further block may be added."""
        place = Place(self.segment, self.size, nbytes(buffers), checksum(key, buffers))
        if not transfer(os.pwritev, self._data, buffers, self.size):
            raise OSError(0, "no bytes could be written")
        self.size += place.size
        record = RECORD.pack(key, *place[1:])
        write_all(self._index, record + CHECKSUM.pack(zlib.crc32(record)))
        self.segment.keys.append(key)
        self.segment.bytes += place.size
        return place

    def close(self) -> None:
        """Ends the segment, and releases its lock."""
        for file in (self._data, self._index):
            if file >= 0:
                with contextlib.suppress(OSError):  # the disk may still be full
                    os.close(file)
        self._data = self._index = -1


def is_written(path: Path) -> bool:
    """Returns whether a segment is being written, by this or another process."""
    try:
        file = open_file(path.with_suffix(INDEX), os.O_RDONLY)
    except OSError:
        return False
    try:
        return not take_lock(file, shared=True)
    except OSError:  # the file system does not support locks
        return False
    finally:
        os.close(file)


def remove(path: Path) -> bool:
    """Removes a segment unless it is being written, and returns whether it was removed."""
    if is_written(path):
        return False
    try:
        for suffix in (INDEX, DATA):
            path.with_suffix(suffix).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def nbytes(buffers: Sequence[Bytes]) -> int:
    """Returns the size of all buffers together in bytes."""
    return sum(buffer.nbytes for buffer in buffers)


def checksum(key: bytes, buffers: Sequence[Bytes]) -> int:
    found = zlib.crc32(key)
    for buffer in buffers:
        found = zlib.crc32(buffer.data, found)
    return found


def shared_directory(path: Path, option: str) -> None:
    """Creates the directory that an option names for this user only, if it is missing.

    An existing one may be shared, but not with everybody. Raises StartError.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise StartError(f"{option} {path}: {error.strerror}") from None
    if mode & 0o002:
        raise StartError(f"{option}: everybody can write to {path}, which is not safe")


def private_directory(path: Path, option: str) -> None:
    """Creates the directory that an option names, and its parent, for this user only, if they are missing.

    Raises StartError, also if others may write to them.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise StartError(f"{option} {path}: {error.strerror}") from None
    if not is_private_directory(found):
        raise StartError(f"{option}: other users can write to {path}, which is not safe")


def open_file(path: Path, flags: int) -> int:
    """Opens a regular file, but no link, without blocking. A new file is for this user only. Raises OSError."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    try:
        require_regular(file, path)
    except OSError:
        os.close(file)
        raise
    return file


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def transfer(
    call: Callable[[int, list[memoryview], int], int], file: int, buffers: Sequence[Bytes], offset: int
) -> bool:
    """Reads or writes all buffers with as few calls as possible.

    Args:
        call: os.preadv to read, or os.pwritev to write.
        file: The descriptor of the file.
        buffers: The buffers to fill or to write, in their order.
        offset: The offset of the first byte in the file.

    Returns:
        False if the file ended before all buffers were read.

    Raises:
        OSError: The file cannot be read or written.
    """
    left = deque(buffer.data for buffer in buffers if buffer.nbytes)
    while left:
        done = call(file, list(islice(left, MOST_BUFFERS)), offset)
        if not done:
            return False
        offset += done
        while left and done >= left[0].nbytes:
            done -= left.popleft().nbytes
        if done:
            left[0] = left[0][done:]
    return True
