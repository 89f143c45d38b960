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
EXIT_USAGE = 2


def spawn_with_socket(command: Sequence[str], **how: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
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


def inherit_socket(module: str, argv: Sequence[str]) -> socket.socket | None:
    """For a child's main: its end of the socket pair, whose number is the only argument.

    None, with the usage on stderr, for other arguments. The child then dies with its parent, and ignores SIGINT and
    SIGTERM, which are sent to a whole group: the parent ends it when it ends itself.
    """
    if len(argv) != 1 or not argv[0].isdigit():
        print(f"usage: python -m {module} <fd>   (the server starts this by itself)", file=sys.stderr)
        return None
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return socket.socket(fileno=int(argv[0]))


def import_path() -> dict[str, str]:
    """Environment variables for a child that imports from exactly where we do, in that order, and from nowhere else.

    With docstrings: openvino reads its own while it is imported, and fails where PYTHONOPTIMIZE=2 has removed them.
    """
    path = [entry or os.getcwd() for entry in sys.path]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": ""}
