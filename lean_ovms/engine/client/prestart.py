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
from typing import NamedTuple

from ...util.child_process import import_path, spawn_with_socket
from ..record import PREIMPORT

COMMAND = (sys.executable, "-m", "lean_ovms.engine.worker")


class Spawned(NamedTuple):
    """A child in its own process group, and our end of its pipe."""

    process: subprocess.Popen[bytes]
    ours: socket.socket


_prestarted: list[Spawned] = []


def prestart() -> None:
    """Start a child for the next spawn(COMMAND). On a single core it would only delay the rest."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores > 1:
        with contextlib.suppress(OSError):  # the next spawn reports it
            _prestarted.append(_start([*COMMAND, PREIMPORT]))


def discard() -> None:
    """End a prestarted child that is not needed."""
    while _prestarted:
        process, ours = _prestarted.pop()
        ours.close()
        process.kill()
        process.wait()


def spawn(command: Sequence[str]) -> Spawned:
    """A child by this command, to which the number of its end of the pipe is appended. Raises OSError."""
    if tuple(command) == COMMAND and _prestarted and _prestarted[-1].process.poll() is None:
        return _prestarted.pop()
    return _start(command)


def _start(command: Sequence[str]) -> Spawned:
    """With the environment and import path of this process, and no thread pool of numpy's.

    In a session of its own: Ctrl-C in a terminal is for the server, which drains; and there is one group to kill.
    """
    environment = {**os.environ, **import_path(), "OPENBLAS_NUM_THREADS": "1"}
    return Spawned(*spawn_with_socket(command, env=environment, start_new_session=True))
