"""The resources that control groups and the machine leave, with files as Linux and containers show them."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.worker.__main__ import limit_threads
from lean_ovms.util import resources
from lean_ovms.util.resources import cores, free_memory_bytes, thread_limit

MACHINE = 4096 * 1024
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def write(root: Path, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    4096 kB\n", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CONTAINER = {"proc/self/cgroup": "0::/\n", f"{V2}/memory.current": "1000\n"}
SERVICE = {"proc/self/cgroup": "0::/system.slice/lean.service\n"}
OLD = {"proc/self/cgroup": "4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n0::/\n"}
"""The files of a host with version 1. The container sees its group as the root, and not its own path."""


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, MACHINE),
        ({**CONTAINER, f"{V2}/memory.max": "max\n"}, MACHINE),
        ({**CONTAINER, f"{V2}/memory.max": "3000\n"}, 2000),
        ({**CONTAINER, f"{V2}/memory.max": "500\n"}, 0),
        ({f"{V2}/memory.max": "3000\n", f"{V2}/memory.current": "1000\n"}, 2000),  # without /proc/self/cgroup
        # The page cache of a model's files is freed when memory is needed.
        ({**CONTAINER, f"{V2}/memory.max": "1000\n", f"{V2}/memory.stat": "anon 9\ninactive_file 700\n"}, 700),
        # systemd's MemoryMax=, and a lower limit of the slice.
        ({**SERVICE, f"{V2}/system.slice/lean.service/memory.max": "3000\n",
          f"{V2}/system.slice/lean.service/memory.current": "10\n"}, 2990),
        ({**SERVICE, f"{V2}/system.slice/lean.service/memory.max": "max\n", f"{V2}/system.slice/memory.max": "800\n",
          f"{V2}/system.slice/memory.current": "700\n"}, 100),
        ({**OLD, f"{V1}/memory.limit_in_bytes": "2000\n", f"{V1}/memory.usage_in_bytes": "1500\n",
          f"{V1}/memory.stat": "inactive_file 1\ntotal_inactive_file 250\n"}, 750),
        ({**OLD, f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
          f"{V1}/memory.usage_in_bytes": "5\n"}, MACHINE),
    ],
)  # fmt: skip
def test_free_memory_is_what_the_machine_and_its_groups_leave(tmp_path: Path, files: dict[str, str], free: int) -> None:
    assert free_memory_bytes(write(tmp_path, files)) == free


def test_free_memory_is_at_most_what_is_left_of_the_address_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10 * page, 10 * page))
    assert free_memory_bytes(write(tmp_path, {"proc/self/statm": "4 3 2 1 0 1 0\n"})) == 6 * page
    assert free_memory_bytes(write(tmp_path, {"proc/self/statm": "12 3 2 1 0 1 0\n"})) == 0


def test_a_machine_that_does_not_tell_has_some(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path) > 0
    assert cores(tmp_path) > 0


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 64),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 3),
        ({"sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 64),
        ({**SERVICE, f"{V2}/system.slice/lean.service/cpu.max": "400000 100000\n"}, 4),
        ({**OLD, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({**OLD, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n"}, 1),
    ],
)  # fmt: skip
def test_a_quota_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], found: int
) -> None:
    monkeypatch.setattr(resources, "allowed_cores", lambda: 64)
    root = write(tmp_path, files)
    assert cores(root) == found
    assert thread_limit(root) == ({} if found == 64 else {"INFERENCE_NUM_THREADS": found})


@pytest.mark.parametrize(
    ("value", "found"), [("", 64), ("{}", 64), (3, 3), ("'3'", 3), (100, 64), (0, 64), (-1, 64), ("'x'", 64), (2.5, 64)]
)
def test_our_threads_are_no_more_than_those_that_openvino_may_have(
    monkeypatch: pytest.MonkeyPatch, value: object, found: int
) -> None:
    monkeypatch.setattr(resources, "allowed_cores", lambda: 64)
    monkeypatch.setattr(resources, "_most_cores", 1000)
    plain = f'{{"INFERENCE_NUM_THREADS": {value}}}'.replace("'", '"')
    limit_threads(Config(plugin_config=plain if value not in ("", "{}") else str(value)))
    assert cores(Path("/none")) == found


def test_nobody_counts_the_processors_but_where_a_quota_is_known() -> None:
    """`allowed_cores` is for code that needs the processors themselves, not a number of threads."""
    package = Path(resources.__file__).parents[1]
    users = {
        path.name for path in package.rglob("*.py") if re.search(r"(?:cpu_count|allowed_cores)\b", path.read_text())
    }
    assert users == {"resources.py", "assemble.py"}


def test_a_quota_limits_the_threads_of_a_model_unless_the_operator_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "thread_limit", lambda: {"INFERENCE_NUM_THREADS": 3})
    assert settings._properties(Config(model_path=str(tmp_path)))["INFERENCE_NUM_THREADS"] == 3
    asked = Config(model_path=str(tmp_path), plugin_config='{"INFERENCE_NUM_THREADS": 5}')
    assert settings._properties(asked)["INFERENCE_NUM_THREADS"] == 5


SCRIPT = """
import sys, threading
from lean_ovms.util import resources

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024

def work():
    for _ in range(3):  # the first block that is freed raises glibc's own threshold
        kept = [bytes(9 << 20) for _ in range(8)]
        texts = [str(number) * 30 for number in range(50_000)]
        del kept

if "configured" in sys.argv:
    resources.configure_allocator()
before = resident_mb()
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
resources.trim()
print(resident_mb() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_memory_of_large_blocks_is_returned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "configured"], capture_output=True, text=True, check=True, timeout=300
    )
    assert int(done.stdout) < 24, "72 MB were in use"
