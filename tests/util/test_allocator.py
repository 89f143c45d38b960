"""Memory of large blocks is returned to the system, also after threads have used it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
