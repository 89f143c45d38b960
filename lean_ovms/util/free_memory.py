"""The memory that a process may still allocate (Linux; elsewhere a guess of 4 GB), and its limits in words."""

from __future__ import annotations

from pathlib import Path

_NO_THREAD = ("resource temporarily unavailable", "can't start new thread")


def with_memory_limit(text: str) -> str:
    """An error's text with the address space that a process may have, and what sets it, where that is limited."""
    return _with_bounds(text, [_address_space()])


def lacks_thread(text: str) -> bool:
    """Whether an error's text says that a thread or process could not be started."""
    return any(words in text.lower() for words in _NO_THREAD)


def with_thread_limits(text: str, root: Path = Path("/")) -> str:
    """An error's text with what bounds the number of threads, and what sets it."""
    user, group = _limit("RLIMIT_NPROC"), _number(_control_group(root) / "pids.max")
    found = [
        _address_space(),
        "" if user is None else f"{user} processes and threads of its user (ulimit -u, LimitNPROC)",
        "" if group is None else f"{group} of its control group (TasksMax, --pids-limit)",
    ]
    return _with_bounds(f"{text}: no thread could be started", found)


def _address_space() -> str:
    limit = _limit("RLIMIT_AS")
    return "" if limit is None else f"{limit / 1e9:.1f} GB of address space (ulimit -v, LimitAS), which threads use too"


def _with_bounds(text: str, found: list[str]) -> str:
    bounds = ", ".join(filter(None, found))
    return f"{text}; a process may have {bounds}" if bounds else text


def _limit(name: str) -> int | None:
    import resource  # not on Windows, where this is imported as well

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _control_group(root: Path) -> Path:
    """That of this process; in a container, which sees no other, the top."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    path = next((line[len("0::/") :] for line in lines if line.startswith("0::/")), "")
    found = root / "sys/fs/cgroup" / path
    return found if found.is_dir() else root / "sys/fs/cgroup"


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
