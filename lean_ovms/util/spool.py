"""Files without a name, for what is too large to be held in this process. Another process reads them by descriptor.

On Linux they are memory of the machine that belongs to no process (memfd_create): a write never waits for a disk, and
what a client sent is on none. Elsewhere they are temporary files.
"""

from __future__ import annotations

import os
import tempfile


class Spool:
    """Bytes in a temporary file, which are written once and read at any place. Its methods raise OSError."""

    def __init__(self) -> None:
        """Makes an empty file that has no name."""
        self.size = 0
        """The number of bytes that have been written."""
        self._descriptor = -1
        self._descriptor = _anonymous_file()

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def write(self, data: memoryview) -> None:
        """Appends. Raises OSError."""
        while data:
            written = os.write(self._descriptor, data)
            self.size += written
            data = data[written:]

    def read(self, start: int, size: int) -> bytes:
        """Returns at most `size` bytes from a place on. Raises OSError."""
        return os.pread(self._descriptor, size, start)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Frees it, unless another process has it. Idempotent."""
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
