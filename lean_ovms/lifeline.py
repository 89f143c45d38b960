"""What every child process needs: to import from where its parent does, and not to outlive it. Knows neither."""

from __future__ import annotations

import logging
import os
import signal
import sys

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies, since a long computation does not look at its pipe."""
    import ctypes  # 4 ms that only children need

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        log.debug("no prctl here: the end of the pipe is the only sign of the parent's end")


def import_path() -> dict[str, str]:
    """Environment variables for a child that imports from exactly where we do, in that order, and from nowhere else."""
    path = [entry or os.getcwd() for entry in sys.path]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
