"""Child processes: spawn one with a socket to its parent, the parent's import path, and an end with the parent.

Knows neither the parents nor the children.
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


def spawn_with_socket(command: Sequence[str], **options: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a command with one end of a socket pair; returns the process and the other end.

    The descriptor's number is appended to the command's arguments. No other descriptor is inherited. options: for
    Popen. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603 - the commands are ours
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, **options
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies: a long computation does not read its socket."""
    import ctypes  # 4 ms, needed by children only

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        log.debug("no prctl: this process ends when its socket is closed")


def import_path() -> dict[str, str]:
    """Environment variables that give a child this process's import path, in the same order, and nothing else.

    PYTHONOPTIMIZE is reset: openvino reads its docstrings while it is imported, and fails where level 2 removed them.
    """
    path = [entry or os.getcwd() for entry in sys.path]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": ""}
