"""glibc's allocator: large blocks are returned to the system. Does nothing with other C libraries.

By default glibc raises its threshold for blocks of their own (mmap) up to 32 MB after the first of them is freed, and
keeps what is freed between smaller blocks: after 50 bodies of 30 MB a process kept 1.2 GB for good.
"""

from __future__ import annotations

import ctypes
import logging
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Options of mallopt in malloc.h; https://man7.org/linux/man-pages/man3/mallopt.3.html."""
MMAP_BYTES = 1 << 20
TRIM_BYTES = 8 << 20
ARENAS = 2
TRIM_AFTER_S = 0.5


def configure() -> None:
    """Sets fixed thresholds for this process, once, before its threads allocate."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("no mallopt: this C library decides when memory is returned")
        return
    for option, value in ((M_MMAP_THRESHOLD, MMAP_BYTES), (M_TRIM_THRESHOLD, TRIM_BYTES), (M_ARENA_MAX, ARENAS)):
        mallopt(option, value)


def reserve(size: int) -> BytesIO:
    """Returns a stream to write `size` bytes to; its getvalue() copies nothing, and it does not grow, which may copy.

    The bytes are calloc's: the system gives the pages one by one as they are written.
    """
    return BytesIO(bytes(size))


def trim() -> None:
    """Returns the free memory of all arenas to the system; a few ms, in C, without the interpreter's lock."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        log.debug("no malloc_trim")


class Trimmer:
    """Returns freed memory to the system, in a thread, a moment after the last of several calls."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Is called when large blocks were freed."""
        import asyncio  # late: engine processes, which have no event loop, import this module too

        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TRIM_AFTER_S, loop.run_in_executor, None, trim)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
