"""What holds for every test."""

from __future__ import annotations

import ctypes
import sys

import pytest

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
    """OpenVINO's CPU plugin gives a thread a signal stack, and may leave it set when the memory is gone.

    It does so (2026.4) where two plugins end in the order they began. The next signal that Python handles, such as the
    alarm of a test that takes too long, would then end the whole run with SIGSEGV and no word of it.
    """
    if "openvino" in sys.modules or "openvino_genai" in sys.modules:
        drop_signal_stack()
