"""What every child process needs: a pipe to its parent, to import from where that does, and not to outlive it.

Knows neither parents nor children.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1


def started(command: Sequence[str], **how: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process of a command, to which the number of its end of a socket pair is appended, and our end of it.

    All else that is open stays here. how: for Popen. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603 - the commands are ours
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, **how
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies, since a long computation does not look at its pipe."""
    import ctypes  # 4 ms that only children need

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        log.debug("no prctl here: the end of the pipe is the only sign of the parent's end")


def import_path() -> dict[str, str]:
    """Environment variables for a child that imports from exactly where we do, in that order, and from nowhere else.

    With docstrings: openvino reads its own while it is imported, and fails where PYTHONOPTIMIZE=2 has removed them.
    """
    path = [entry or os.getcwd() for entry in sys.path]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": ""}
