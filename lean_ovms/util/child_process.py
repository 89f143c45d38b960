"""Child processes that have a socket to their parent and its import path, and that end together with it."""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

log = logging.getLogger(__name__)

PREIMPORT = "preimport"
"""An argument of a child's command: import what it will need before its parent sends anything."""
LOG_FD = "LEAN_OVMS_ENGINE_LOG_FD"
"""The environment variable with the descriptor of the engine process's log; its stdout and stderr are for other
output."""
PR_SET_PDEATHSIG = 1
IOLBF = 1
NEEDS_POSIX = (
    "lean_ovms does not run on Windows, where a process cannot be given a socket as POSIX does; use WSL 2 or the "
    "container (the Dockerfile)"
)
EXIT_USAGE = 2


def spawn_with_socket(
    command: Sequence[str], *, keep: Sequence[int] = (), **options: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a command with one end of a socket pair; returns the process and the other end. Raises OSError.

    The number of the child's end is appended to the command. It inherits only this and the descriptors to `keep`. The
    options are further arguments of subprocess.Popen.
    """
    if not_posix():
        raise OSError(NEEDS_POSIX)
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(  # noqa: S603 - the commands are ours
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno(), *keep], stdin=subprocess.DEVNULL, **options
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def not_posix() -> bool:
    """Returns whether this system is Windows, where child processes cannot be started in this way."""
    return sys.platform == "win32"


def wait_unreaped(pid: int) -> None:
    """Waits until a child has exited, without reading its status. Raises ChildProcessError if there is none."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    queue: Any = select.kqueue()  # type: ignore[attr-defined]  # macOS
    try:
        event = (pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT)  # type: ignore[attr-defined]
        queue.control([select.kevent(*event)], 1)  # type: ignore[attr-defined]
    except ProcessLookupError as error:
        raise ChildProcessError(str(error)) from None
    finally:
        queue.close()


def die_with_parent() -> None:
    """Asks Linux for SIGKILL when the parent dies, since a child in a long computation does not read its socket."""
    import ctypes  # 4 ms, needed by children only

    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        log.debug("no prctl: this process ends when its socket is closed")


def write_lines_at_once() -> None:
    """Makes stdout line-buffered for Python, C and C++ code, since a crash would lose a buffer's content."""
    import ctypes

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)

    try:
        libc = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(libc, "__stdoutp" if sys.platform == "darwin" else "stdout")
        libc.setvbuf(stdout, None, IOLBF, 0)
    except (OSError, AttributeError, ValueError):
        log.debug("no setvbuf: what is printed to stdout may come late")


def inherit_socket(module: str, argv: Sequence[str]) -> socket.socket | None:
    """Returns a child's end of a socket pair, whose number is its only argument, and ties the child to its parent.

    The child dies with its parent. It ignores SIGINT, SIGTERM and SIGHUP, which are sent to a whole process group, the
    last one when a terminal is closed: the parent ends the child when it ends itself. With other arguments, it writes
    how the module is used to stderr, and returns None.
    """
    if len(argv) != 1 or not argv[0].isdigit():
        print(f"usage: python -m {module} <fd>   (the server starts this by itself)", file=sys.stderr)
        return None
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return socket.socket(fileno=int(argv[0]))


def import_path() -> dict[str, str]:
    """Returns the environment variables that give a child this process's import path in the same order.

    PYTHONOPTIMIZE is reset, since openvino reads its docstrings while it is imported, and fails if level 2 removed
    them.
    """
    path = [entry or os.getcwd() for entry in sys.path]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": ""}
