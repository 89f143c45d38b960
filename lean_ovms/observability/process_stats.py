"""Memory, CPU time and descriptors of this process, memory of others, by Linux' /proc; nothing without it."""

from __future__ import annotations

import os
from functools import cache

from ..manifest import Metric

FAMILIES = (
    Metric("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", ()),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", ()),
    Metric("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", ()),
    Metric("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", ()),
    Metric("process_open_fds", "gauge", "Number of open file descriptors.", ()),
    Metric("process_max_fds", "gauge", "Maximum number of open file descriptors.", ()),
)
"""Names and help of Prometheus' client libraries."""


def read() -> dict[str, float]:
    try:
        import resource  # not on Windows

        hertz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the third field of proc(5) is the first here
        return {
            "process_virtual_memory_bytes": int(fields[20]),
            "process_resident_memory_bytes": int(fields[21]) * page,
            "process_start_time_seconds": _booted_at() + int(fields[19]) / hertz,
            "process_cpu_seconds_total": (int(fields[11]) + int(fields[12])) / hertz,
            "process_open_fds": len(os.listdir("/proc/self/fd")),
            "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
    except (ImportError, OSError, IndexError, ValueError):
        return {}


def resident_bytes(pid: int | None) -> int | None:
    """Returns the memory of another process; None if /proc does not have it (10 us on Linux)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


@cache
def _booted_at() -> float:
    with open("/proc/stat", "rb") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(b"btime "))
