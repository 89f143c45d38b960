"""Shows why tests/conftest.py removes the signal stack that OpenVINO sets, and that this helps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, signal
from openvino import Core
from tests.conftest import drop_signal_stack, signal_stack

def plugin():
    core = Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")
    return core

def status(prepare):
    child = os.fork()
    if child == 0:
        prepare()
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

first, second = plugin(), plugin()
found = {"set": signal_stack() is not None}
del second, first
found["left after reverse order"] = signal_stack() is not None
first, second = plugin(), plugin()
del first, second
left = signal_stack() or 0
pages = [line.split()[0].split("-") for line in open("/proc/self/maps")]
found["mapped"] = any(int(start, 16) <= left < int(end, 16) for start, end in pages)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(10))
found["kept"] = status(lambda: None)
found["dropped"] = status(drop_signal_stack)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.model
def test_plugins_deleted_in_the_order_of_their_creation_leave_a_freed_stack():
    """When this fails, OpenVINO is fixed, and tests/conftest.py need not remove the stack."""
    root = Path(__file__).parents[1]
    found = json.loads(subprocess.check_output([sys.executable, "-c", SCRIPT], text=True, timeout=300, cwd=root))
    if not found.pop("set"):
        pytest.skip("OpenVINO sets no signal stack: the kernel does not name the size of a signal frame")
    assert found == {
        "left after reverse order": False,
        "mapped": False,
        "kept": -signal.SIGSEGV,
        "dropped": 10,  # the handler ran
    }
