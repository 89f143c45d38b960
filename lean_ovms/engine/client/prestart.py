"""Starts the process of an engine child: on demand, or early, when it is certain that one will be needed soon.

A prestarted child imports openvino while the server imports its modules and starts to listen, and is ready earlier; it
gets its Load like any other. Imports nothing heavy: the command line uses it first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from io import FileIO
from typing import NamedTuple

from ...util.child_process import import_path, spawn_with_socket
from ...util.resources import cores
from ..record import LOG_FD, PREIMPORT

COMMAND = (sys.executable, "-m", "lean_ovms.engine.worker")
PIPE_BYTES = 1 << 18


class Spawned(NamedTuple):
    """A child in its own process group, our end of its pipe, and what it prints (not blocking)."""

    process: subprocess.Popen[bytes]
    ours: socket.socket
    output: FileIO

    def discard(self) -> None:
        self.ours.close()
        self.output.close()
        self.process.kill()
        self.process.wait()


_prestarted: list[Spawned] = []


def prestart(*, log_to_stderr: bool = False) -> None:
    """Starts a child for the next spawn(COMMAND), unless one waits. On a single core it would only delay the rest.

    Args:
        log_to_stderr: Whether the child logs to this process's stderr before the logs of this process are set up.
    """
    if cores() > 1 and not _prestarted:
        with contextlib.suppress(OSError):  # the next spawn reports it
            _prestarted.append(_start([*COMMAND, PREIMPORT], log_to_stderr))


def discard() -> None:
    """Ends a prestarted child that is not needed."""
    while _prestarted:
        _prestarted.pop().discard()


def spawn(command: Sequence[str]) -> Spawned:
    """Returns a child by this command, to which the number of its end of the pipe is appended. Raises OSError."""
    if tuple(command) == COMMAND and _prestarted and _prestarted[-1].process.poll() is None:
        return _prestarted.pop()
    return _start(command)


def _start(command: Sequence[str], log_to_stderr: bool = False) -> Spawned:
    """Starts a process with the environment and import path of this one, and without numpy's thread pool.

    It has a session of its own: Ctrl-C in a terminal is for the server, which drains; and there is one group to kill.
    """
    environment = {**os.environ, **import_path(), "OPENBLAS_NUM_THREADS": "1"}
    log_fd = _dup_stderr() if log_to_stderr or _writes_logs() else None
    reader, writer = os.pipe()
    output = FileIO(reader, "r")
    try:
        _enlarge(writer)
        os.set_blocking(reader, False)
        keep = [] if log_fd is None else [log_fd]
        if keep:
            environment[LOG_FD] = str(log_fd)
        return Spawned(
            *spawn_with_socket(
                command, keep=keep, env=environment, stdout=writer, stderr=writer, start_new_session=True
            ),
            output,
        )
    except OSError:
        output.close()
        raise
    finally:
        os.close(writer)
        if log_fd is not None:
            os.close(log_fd)


def _writes_logs() -> bool:
    """Returns whether the logs are not those of a program around us, in which case what a child logs is logged here."""
    from ...observability import logging  # late: the command line starts a child before it needs this

    return logging.is_set_up()


def _dup_stderr() -> int | None:
    """Returns a descriptor for the child's log; None if this process has no stderr."""
    with contextlib.suppress(OSError):
        return os.dup(2)
    return None


def _enlarge(pipe: int) -> None:
    """Makes room for what is printed while this process is busy; Linux has 64 KiB by default."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl  # not on Windows

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
