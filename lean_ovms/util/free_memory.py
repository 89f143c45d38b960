"""The memory that a process may still allocate. Linux; elsewhere a guess of 4 GB."""

from __future__ import annotations

from pathlib import Path


def address_space_limit() -> int | None:
    """Bytes of address space that this process may have (`ulimit -v`); None: no limit."""
    import resource  # not on Windows, where this is imported as well

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may still allocate: the machine's available memory, or what its control group leaves."""
    free = _meminfo(root / "proc/meminfo")
    group = root / "sys/fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    return free if limit is None or used is None else max(0, min(free, limit - used))


def _meminfo(path: Path) -> int:
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return 4 << 30
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) << 10 if found else 4 << 30


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
