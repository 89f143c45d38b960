"""The memory, processors and threads that this process may use, and functions that return memory to the system.

The limits are those of the machine and of Linux's control groups, version 2, and version 1 on older hosts;
https://docs.kernel.org/admin-guide/cgroup-v2.html. A container sees its own group as the root, a service of systemd its
whole path; the limits of every level apply.
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
    import resource  # now, since later there may not be enough memory to load a library

log = logging.getLogger(__name__)

_NO_THREAD = ("resource temporarily unavailable", "can't start new thread")


def with_memory_limit(text: str) -> str:
    """Appends the limit of this process's address space, and what sets it, to an error's text if there is a limit."""
    return _with_bounds(text, [_address_space()])


def lacks_thread(text: str) -> bool:
    """Returns whether an error's text says that a thread or process could not be started."""
    return any(words in text.lower() for words in _NO_THREAD)


def with_thread_limits(text: str, root: Path = Path("/")) -> str:
    """Appends the limits of the number of threads, and what sets them, to an error's text."""
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
    """Raises the soft limit of open files to `wanted` if possible; returns the new limit, at most `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the bytes this process may still allocate, by the machine, its control groups and ulimit -v.

    It is 4 GB without Linux.
    """
    found = [_meminfo(root / "proc/meminfo")]
    for pages in _numbers(root / "proc/self/statm")[:1]:
        if (space := _limit("RLIMIT_AS")) is not None:
            found.append(space - pages * os.sysconf("SC_PAGE_SIZE"))
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
    """Returns the resident bytes of other processes; None if /proc has none of them (10 us each on Linux)."""
    found = []
    for pid in pids:
        with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
            found.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    return sum(found) if found else None


def limit_cores(most: int) -> None:
    """Limits the result of `cores` to this number from now on."""
    global _most_cores
    _most_cores = most


_most_cores = sys.maxsize


def cores(root: Path = Path("/")) -> int:
    """Returns the processors that this process may use at once by quotas and `limit_cores`, fractions rounded up."""
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
    """Returns the OpenVINO property that limits the threads to the quota of processors; {} without a quota.

    OpenVINO does not know the quota. It would start one thread for each processor of the machine, and all would be
    stopped for most of each period.
    """
    found = cores(root)
    return {"INFERENCE_NUM_THREADS": found} if found < allowed_cores() else {}


def allowed_cores() -> int:
    """Returns how many CPU cores this process may use, ignoring quotas."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of the control groups of this process, at every visible level."""
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
    """Returns the bytes of file pages that a control group counts as used, but that are freed on demand."""
    found = dict(line.split(" ", 1) for line in _lines(path))
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))


def _meminfo(path: Path) -> int:
    found = [line.split()[1] for line in _lines(path) if line.startswith("MemAvailable:")]
    return int(found[0]) << 10 if found else 4 << 30


def _numbers(path: Path) -> list[int]:
    """Returns the numbers in the first line of a file; none if it contains a word such as "max"."""
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
"""The options of mallopt in malloc.h; https://man7.org/linux/man-pages/man3/mallopt.3.html."""
MMAP_BYTES = 1 << 20
TRIM_BYTES = 8 << 20
ARENAS = 2
TRIM_AFTER_S = 0.5


def configure_allocator() -> None:
    """Makes glibc return large blocks to the system, by fixed thresholds; called once, before there are threads.

    By default glibc raises its threshold for separately mapped blocks to up to 32 MB after the first of them is freed,
    and keeps free memory between smaller blocks: after 50 bodies of 30 MB a process kept 1.2 GB for good. With other C
    libraries it does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("no mallopt: this C library decides when memory is returned")
        return
    for option, value in ((M_MMAP_THRESHOLD, MMAP_BYTES), (M_TRIM_THRESHOLD, TRIM_BYTES), (M_ARENA_MAX, ARENAS)):
        mallopt(option, value)


def reserve(size: int) -> BytesIO:
    """Returns a stream with room for `size` bytes. Its getvalue() copies nothing, and it never grows, which might copy.

    The memory comes from calloc, so the system provides each page only when it is written.
    """
    return BytesIO(bytes(size))


def trim() -> None:
    """Returns the free memory of all arenas to the system. It takes a few ms in C, without the interpreter lock."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        log.debug("no malloc_trim")


class Trimmer:
    """Returns freed memory to the system in a thread, a moment after the last of several calls."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Schedules the work; called when large blocks have been freed."""
        import asyncio  # late: engine processes, which have no event loop, import this module too

        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TRIM_AFTER_S, loop.run_in_executor, None, trim)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
