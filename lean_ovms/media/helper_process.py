"""The child's side of helper.py: a process that handles one job after another, each with limits of memory and time."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections.abc import Callable
from io import BufferedRWPair
from typing import Any, NoReturn

from ..util.child_process import EXIT_USAGE, inherit_socket

Handle = Callable[[dict[str, Any], BufferedRWPair], None]


def run(module: str, handle: Handle) -> NoReturn:
    """The main of a helper's module: call handle with each job, a line of JSON, until the parent ends the socket pair.

    It writes no core and no file.
    """
    sock = inherit_socket(module, sys.argv[1:])
    if sock is None:
        os._exit(EXIT_USAGE)
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    try:
        with sock.makefile("rwb") as stream:
            for line in stream:
                handle(json.loads(line), stream)
    except BrokenPipeError:  # the request was given up
        pass
    os._exit(0)


def set_limits(extra_bytes: int, extra_s: float) -> None:
    """Limit memory and CPU time to what the process has used so far and this."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    _set(resource.RLIMIT_AS, used_bytes + extra_bytes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + extra_s))


def _set(limit: int, value: int) -> None:
    resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
