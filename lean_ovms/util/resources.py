"""The memory, processors and threads that this process may use, as the machine and its control groups limit them; and
memory that it gives back.

Control groups of Linux: version 2, and version 1 of older hosts; https://docs.kernel.org/admin-guide/cgroup-v2.html. A
container sees its own group as the root, a service of systemd its whole path; the limits of every level hold.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

if sys.platform != "win32":
    import resource  # here, for where it is needed there may be no memory to load a library

log = logging.getLogger(__name__)

_NO_THREAD = ("resource temporarily unavailable", "can't start new thread")


def with_memory_limit(text: str) -> str:
    """Returns an error's text with the limit of this process's address space, and what sets it, if there is one."""
    return _with_bounds(text, [_address_space()])


def lacks_thread(text: str) -> bool:
    """Returns whether an error's text says that a thread or process could not be started."""
    return any(words in text.lower() for words in _NO_THREAD)


def with_thread_limits(text: str, root: Path = Path("/")) -> str:
    """Returns an error's text with what bounds the number of threads, and what sets it."""
    user = _limit("RLIMIT_NPROC")
    groups = [number for group in _groups(root, "pids") for number in _numbers(group / "pids.max")]
    found = [
        _address_space(),
        "" if user is None else f"{user} processes and threads of its user (ulimit -u, LimitNPROC)",
        f"{min(groups)} of its control group (TasksMax, --pids-limit)" if groups else "",
    ]
    return _with_bounds(f"{text}: no thread could be started", found)


def _address_space() -> str:
    limit = _limit("RLIMIT_AS")
    return "" if limit is None else f"{limit / 1e9:.1f} GB of address space (ulimit -v, LimitAS), which threads use too"


def _with_bounds(text: str, found: list[str]) -> str:
    bounds = ", ".join(filter(None, found))
    return f"{text}; a process may have {bounds}" if bounds else text


def _limit(name: str) -> int | None:
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def raise_open_files(wanted: int) -> int:
    """Returns how many files this process may have open, `wanted` at most; a lower soft limit is raised to them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that this process may still allocate: the machine's available memory, or what its control
    groups leave.

    Elsewhere than on Linux 4 GB is assumed.
    """
    found = [_meminfo(root / "proc/meminfo")]
    for group in _groups(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _numbers(group / limit_name), _numbers(group / used_name)
            if limit and used:
                found.append(limit[0] - used[0] + _reclaimable(group / "memory.stat"))
    return max(0, min(found))


def resident_bytes(pids: Iterable[int]) -> int | None:
    """Returns the memory of other processes together; None if /proc has none of them (10 us for one on Linux)."""
    found = []
    for pid in pids:
        with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
            found.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    return sum(found) if found else None


def limit_cores(most: int) -> None:
    """Has `cores` return no more than this from now on."""
    global _most_cores
    _most_cores = most


_most_cores = sys.maxsize


def cores(root: Path = Path("/")) -> int:
    """Returns the number of processors that this process may use at once: a quota of its control groups counts, half a
    processor as one, and so does `limit_cores`."""
    found = min(allowed_cores(), _most_cores)
    for group in _groups(root, "cpu"):
        for numbers in (
            _numbers(group / "cpu.max"),
            [*_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")],
        ):
            if len(numbers) == 2 and min(numbers) > 0:
                quota, period = numbers
                found = min(found, -(-quota // period))
    return found


def thread_limit(root: Path = Path("/")) -> dict[str, int]:
    """Returns OpenVINO's property for the threads of a quota, which it does not know: it would start one for each
    processor of the machine, and all would stand still for most of each period. Without a quota nothing, so that
    OpenVINO decides.
    """
    found = cores(root)
    return {"INFERENCE_NUM_THREADS": found} if found < allowed_cores() else {}


def allowed_cores() -> int:
    """Returns how many CPU cores this process may use, a quota apart."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Returns the folders of the control groups that this process is in, at every level that can be seen."""
    lines = _lines(root / "proc/self/cgroup") or ["0::/"]
    for line in lines:
        number, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if number != "0":
            if controller not in controllers.split(","):
                continue
            mount /= controller
        inner = mount.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount) and folder.is_dir())


def _reclaimable(path: Path) -> int:
    """Returns the bytes of files' pages that a group counts as used, and that make room when memory is needed."""
    found = dict(line.split(" ", 1) for line in _lines(path))
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))


def _meminfo(path: Path) -> int:
    found = [line.split()[1] for line in _lines(path) if line.startswith("MemAvailable:")]
    return int(found[0]) << 10 if found else 4 << 30


def _numbers(path: Path) -> list[int]:
    """Returns the numbers of a file's first line; none if it has a word, such as "max"."""
    try:
        return [int(word) for line in _lines(path)[:1] for word in line.split()]
    except ValueError:
        return []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return []


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Options of mallopt in malloc.h; https://man7.org/linux/man-pages/man3/mallopt.3.html."""
MMAP_BYTES = 1 << 20
TRIM_BYTES = 8 << 20
ARENAS = 2
TRIM_AFTER_S = 0.5


def configure_allocator() -> None:
    """Lets glibc return large blocks to the system: fixed thresholds for this process, once, before threads allocate.

    By default glibc raises its threshold for blocks of their own (mmap) up to 32 MB after the first of them is freed,
    and keeps what is freed between smaller blocks: after 50 bodies of 30 MB a process kept 1.2 GB for good. Does
    nothing with other C libraries.
    """
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
