"""The loop of the process that checks grammars for checker.ProcessGrammarChecker.

Each JSON line is answered by one JSON line. The first has the checker's settings, and is answered by {"ready": true}.
Each further line is {"tag": text, "bounds": {...}}, and is answered by the result of `check`, or by {"error": text} or
{"complex": text}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ....errors import GrammarInvalid, GrammarTooComplex
from ....util.child_process import EXIT_USAGE, inherit_socket
from ..limits import GrammarBounds

Check = Callable[[str, GrammarBounds], dict[str, Any]]


def serve(module: str, load: Callable[[dict[str, Any]], Check]) -> NoReturn:
    """Answers messages until the other side closes the connection, and then ends the process.

    Given the settings in the first message, `load` makes the function that checks grammars.
    """
    sock = inherit_socket(module, sys.argv[1:])
    if sock is None:
        os._exit(EXIT_USAGE)
    stream = sock.makefile("rw", encoding="utf-8")
    check: Check | None = None
    for line in stream:
        message = json.loads(line)
        if check is None:
            check = load(message)
            answer: dict[str, Any] = {"ready": True}
        else:
            answer = _answer(check, message)
        stream.write(json.dumps(answer) + "\n")
        stream.flush()
    os._exit(0)


def _answer(check: Check, message: dict[str, Any]) -> dict[str, Any]:
    try:
        return check(message["tag"], GrammarBounds(**message["bounds"]))
    except GrammarTooComplex as error:
        return {"complex": error.message}
    except GrammarInvalid as error:
        return {"error": error.message}


def limit_memory(more: int) -> None:
    """Limits the memory of this process to `more` bytes beyond what it has now, and turns core files off."""
    import resource  # POSIX only

    limit = data_bytes() + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def data_bytes() -> int:
    """Returns the size of this process's private writable memory in bytes, as RLIMIT_DATA counts it."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData:")), 0)
