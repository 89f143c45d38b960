"""Starts engine processes: on demand, or in advance if one will certainly be needed soon.

A prestarted process imports openvino while the server imports its own modules and starts to listen, so it is ready
earlier. It receives its Load record like any other. This module imports nothing heavy, since the command line uses it
first.
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

from ...util.child_process import LOG_FD, PREIMPORT, import_path, spawn_with_socket
from ...util.resources import cores

COMMAND = (sys.executable, "-m", "lean_ovms.engine.worker")
PIPE_BYTES = 1 << 18


class Spawned(NamedTuple):
    """An engine process in its own group, with the front end's ends of its pipe and of its non-blocking output."""

    process: subprocess.Popen[bytes]
    """The process."""
    ours: socket.socket
    """The front end's end of the socket pair between the two processes."""
    output: FileIO
    """The read end of the pipe to which the process writes stdout and stderr. It does not block."""

    def discard(self) -> None:
        self.ours.close()
        self.output.close()
        self.process.kill()
        self.process.wait()


_prestarted: list[Spawned] = []


def prestart(*, log_to_stderr: bool = False) -> None:
    """Starts a process for the next call spawn(COMMAND), unless one waits already or there is only one core.

    On a single core it would delay everything else. It may log to this one's stderr until the logs here are set up.
    """
    if cores() > 1 and not _prestarted:
        with contextlib.suppress(OSError):  # the next spawn reports it
            _prestarted.append(_start([*COMMAND, PREIMPORT], log_to_stderr))


def discard() -> None:
    """Ends the prestarted process, which is not needed."""
    while _prestarted:
        _prestarted.pop().discard()


def spawn(command: Sequence[str]) -> Spawned:
    """Starts a process with this command and its end of the pipe, or returns the prestarted one. Raises OSError."""
    if tuple(command) == COMMAND and _prestarted and _prestarted[-1].process.poll() is None:
        return _prestarted.pop()
    return _start(command)


def _start(command: Sequence[str], log_to_stderr: bool = False) -> Spawned:
    """Starts a process with the environment and import path of this one, but without numpy's thread pool.

    The descriptor of its end of the pipe is appended to the command. It has its own session: Ctrl-C in a terminal
    reaches only the server, which then drains, and the whole process group can be killed at once.
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
    """Returns whether this server writes its own logs; inside another program, it logs for the engine process, too."""
    from ...observability import logging  # late: the command line starts a child before it needs this

    return logging.is_set_up()


def _dup_stderr() -> int | None:
    """Returns a file descriptor for the engine process's log; None if this process has no stderr."""
    with contextlib.suppress(OSError):
        return os.dup(2)
    return None


def _enlarge(pipe: int) -> None:
    """Enlarges the buffer of a pipe, so that output is kept while this process is busy. Linux's default is 64 KiB."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl  # not on Windows

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
