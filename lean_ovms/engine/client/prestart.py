"""Starting the process of an engine child: on request, or ahead, when it is certain that one will be wanted soon.

A child that is started ahead imports openvino while the server imports itself and begins to listen, and is ready the
earlier; what it is to load it learns like any other. Imports nothing heavy: the command line uses it first of all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ...util.child_process import import_path, spawn_with_socket
from ..protocol import AHEAD

COMMAND = (sys.executable, "-m", "lean_ovms.engine.worker")


class Spawned(NamedTuple):
    """A child in its own process group, and our end of its pipe."""

    process: subprocess.Popen[bytes]
    ours: socket.socket


_ahead: list[Spawned] = []


def ahead() -> None:
    """Start a child for the next spawn(COMMAND). On a single core it would only delay the rest."""
    if len(os.sched_getaffinity(0)) > 1:
        with contextlib.suppress(OSError):  # the next spawn says what is wrong
            _ahead.append(_start([*COMMAND, AHEAD]))


def forget() -> None:
    """End what was started ahead and is not wanted."""
    while _ahead:
        process, ours = _ahead.pop()
        ours.close()
        process.kill()
        process.wait()


def spawn(command: Sequence[str]) -> Spawned:
    """A child by this command, to which the number of its end of the pipe is appended. Raises OSError."""
    if tuple(command) == COMMAND and _ahead and _ahead[-1].process.poll() is None:
        return _ahead.pop()
    return _start(command)


def _start(command: Sequence[str]) -> Spawned:
    """With our environment, its modules from where ours are, and no thread pool of numpy's.

    A session of its own: Ctrl-C in a terminal is for the server, which drains; and there is one group to kill.
    """
    environment = {**os.environ, **import_path(), "OPENBLAS_NUM_THREADS": "1"}
    return Spawned(*spawn_with_socket(command, env=environment, start_new_session=True))
