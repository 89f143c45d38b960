"""Keeps the large constants of a network in a file on a local disk, so that they need not stay in memory.

OpenVINO packs matrices into memory of its own and hardly reads the constants again (engine.loading.weight_pages). The
file is unnamed and is gone when the process ends. If the temporary folder is in memory or on a network, or has too
little space, constants stay in the process's memory.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
import shutil
import sys
import tempfile
import time
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ....engine.loading.weight_pages import keep_mapping

log = logging.getLogger("lean_ovms.gguf")

LEAST_BYTES = 1 << 14
"""Smaller constants stay in memory."""
ALIGNED = 64
"""Constants begin at a multiple of so many bytes."""
ROOM = 2
"""The most bytes of the file, and the free bytes that its disk must have, as a multiple of the size of all matrices, of
which some are stored twice."""
LOCAL = (0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x794C7630)
"""The numbers of file systems on local disks: ext4, xfs, btrfs, f2fs, zfs, overlay; from linux/magic.h."""
STRUCT_BYTES = 512
"""The size of the buffer for struct statfs, whose first word is the number of the file system."""
SLOW_AFTER, SLOW = 1 << 28, 30e6
"""The number of bytes after which the disk's speed is checked, and the least speed in bytes per second to go on."""


class ConstantFile:
    """The file of one network's constants, which is created for the first large one."""

    def __init__(self, size: int) -> None:
        """Keeps the size of the file in bytes, in which all matrices of the network fit; it is created later."""
        self._size = size
        self._usable = sys.platform == "linux"
        self._map: mmap.mmap | None = None
        self._address = 0
        self._number = -1
        self._end = 0
        self._took_s = 0.0

    def reserve(self, size: int) -> NDArray[np.uint8] | None:
        """Reserves bytes of the file, which `write` fills. Returns None if the constant has to be in memory instead."""
        if size < LEAST_BYTES or not self._usable:
            return None
        try:
            mapped = self._map if self._map is not None else self._open()
            found = np.frombuffer(mapped, np.uint8, size, self._end)
        except (OSError, ValueError) as error:  # there is no space on the disk
            self._give_up(error)
            return None
        self._end += -(-size // ALIGNED) * ALIGNED
        return found

    def write(self, memory: NDArray[np.uint8], start: int, data: NDArray[np.uint8]) -> bool:
        """Writes bytes to a reserved part of the file, and returns whether that succeeded.

        Args:
            memory: The reserved part, as `reserve` returned it.
            start: The offset in the reserved part.
            data: The bytes.
        """
        begin, started, written = memory.ctypes.data - self._address + start, time.monotonic(), 0
        try:
            while written < data.size:
                written += os.pwrite(self._number, data[written:].data, begin + written)
        except OSError as error:
            self._give_up(error)
            return False
        self._took_s += time.monotonic() - started
        if SLOW_AFTER < self._end < SLOW * self._took_s:
            self._give_up("the disk is slow")
        return True

    def close(self) -> None:
        """Closes the file for writing. The constants stay mapped."""
        if self._number >= 0:
            os.close(self._number)
        self._number, self._usable = -1, False

    def _open(self) -> mmap.mmap:
        """Creates the file and maps it. Raises OSError and ValueError."""
        folder, size = tempfile.gettempdir(), self._size * ROOM
        if not is_local(folder) or shutil.disk_usage(folder).free < size:
            raise OSError(f"{folder} is not on a local disk with room for {size} bytes")
        with tempfile.TemporaryFile(dir=folder, prefix="lean_ovms_") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            self._number = os.dup(file.fileno())
        self._address = np.frombuffer(self._map, np.uint8, 1).ctypes.data
        keep_mapping(self._address, self._map)  # OpenVINO does not keep the mapping alive
        return self._map

    def _give_up(self, why: object) -> None:
        log.debug("further weights stay in memory: %s", why)
        self._usable = False


class NewConstant:
    """A constant that is filled row by row, in the file or in memory."""

    def __init__(self, file: ConstantFile, kind: ov.Type, shape: list[int]) -> None:
        """Allocates the memory of the constant.

        Args:
            file: The file to allocate it in, if that has room.
            kind: The type of the elements.
            shape: The shape of the constant.
        """
        self._file, self._kind, self._shape = file, kind, ov.Shape(shape)
        self._written = 0
        self._memory = file.reserve(-(-math.prod(shape) * kind.bitwidth // 8))
        self._tensor = ov.Tensor(kind, self._shape) if self._memory is None else None

    def append(self, rows: NDArray[Any]) -> None:
        """Adds further rows, whose elements have the type of the constant; those of 4 bits are packed two in a byte."""
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        memory, start = self._memory, self._written
        if memory is not None and not self._file.write(memory, start, data):
            self._tensor = ov.Tensor(self._kind, self._shape)
            _bytes(self._tensor)[:start] = memory[:start]
            self._memory = None
        if self._tensor is not None:
            _bytes(self._tensor)[start : start + data.size] = data
        self._written += data.size

    def node(self) -> Any:
        """Returns the filled constant as a node of a network."""
        tensor = self._tensor
        if tensor is None:
            assert self._memory is not None
            packed = self._kind.bitwidth < 8
            view = self._memory if packed else self._memory.view(self._kind.to_dtype())
            tensor = ov.Tensor(view, self._shape, self._kind)
        return ov.op.Constant(tensor, shared_memory=True)


def _bytes(tensor: ov.Tensor) -> NDArray[np.uint8]:
    """Returns the memory of a tensor as bytes."""
    found: NDArray[np.uint8] = tensor.data.reshape(-1).view(np.uint8)
    return found


def is_local(folder: str) -> bool:
    """Returns whether a folder is on a local disk."""
    found = ctypes.create_string_buffer(STRUCT_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(folder), found):
        return False
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) in LOCAL
