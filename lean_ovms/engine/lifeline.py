"""A child process that must not outlive its parent. Knows neither."""

from __future__ import annotations

import ctypes
import logging
import signal

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies, since a long computation does not look at its pipe."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        log.debug("no prctl here: the end of the pipe is the only sign of the parent's end")
