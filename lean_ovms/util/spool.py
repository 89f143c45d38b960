"""Unnamed files for data that is too large for the memory of this process. Another process can read them by descriptor.

On Linux they are memory of the machine that belongs to no process (memfd_create): a write never waits for a disk, and
no client's data is on a disk. On other systems they are temporary files.
"""

from __future__ import annotations

import os
import tempfile


class Spool:
    """A temporary file that is written sequentially, and can be read at any offset. Its methods raise OSError."""

    def __init__(self) -> None:
        """Creates an empty file without a name."""
        self.size = 0
        """The number of bytes that have been written."""
        self._descriptor = -1
        self._descriptor = _anonymous_file()

    def write(self, data: memoryview) -> None:
        """Appends bytes. Raises OSError."""
        while data:
            written = os.write(self._descriptor, data)
            self.size += written
            data = data[written:]

    def read(self, start: int, size: int) -> bytes:
        """Returns at most `size` bytes, beginning at `start`. Raises OSError."""
        return os.pread(self._descriptor, size, start)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Closes the file, which frees it unless another process has it open. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lean_ovms", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())
