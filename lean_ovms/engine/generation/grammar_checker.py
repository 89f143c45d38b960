"""Asks a helper process whether a grammar can be compiled, and kills it when that takes too long. Knows no openvino.

Time is the helper's CPU time: what a grammar costs must not depend on what else the machine does. A helper that gets no
CPU is given up as well, much later.
The helper is started for the first grammar and stopped after a while without any: alive it takes about 130 MB. All
calls come from one thread, and may block for the time limit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import GrammarInvalid, RequestError, Unavailable
from ...util.child_process import spawn_with_socket
from .grammar_limits import too_complex

log = logging.getLogger(__name__)

PATIENCE = 10
"""Wall time that a compilation may take, in its CPU time limits."""
LOOK_EVERY_S = 0.02
START_TIMEOUT_S = 120.0
"""For importing openvino_genai and loading a tokenizer (0.8 s) on a machine that is busy or has just booted."""
GRACE_S = 0.5
RECEIVE_BYTES = 65536
COMMAND = (sys.executable, "-m", "lean_ovms.engine.genai.grammar_process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the helper is told, and its limits. timeout_s: CPU time of one grammar."""

    model_dir: str
    width: int
    timeout_s: float
    memory_bytes: int


class Checker:
    """One helper process, started when needed."""

    def __init__(self, settings: Settings, command: Sequence[str] = COMMAND) -> None:
        self._settings = settings
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The helper's process id, None while there is none."""
        return self._process.pid if self._process else None

    def check(self, tag: str) -> tuple[float, int]:
        """Seconds and bytes of compiling a tag. Raises GrammarInvalid, GrammarTooComplex or Unavailable."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("the grammar helper was ended by somebody (status %s); another is started", self.stop())
        if self._process is None:
            self._start()
        try:
            answer = self._ask({"tag": tag}, PATIENCE * self._settings.timeout_s, self._settings.timeout_s)
        except TimeoutError:
            self.stop()
            raise too_complex(f"compiling it takes more than {self._settings.timeout_s:g} s") from None
        except OSError:
            status = self.stop(GRACE_S)
            log.warning("the grammar helper ended with status %s on a grammar of %d bytes", status, len(tag))
            raise too_complex("compiling it takes too much memory") from None
        if "error" in answer:
            raise GrammarInvalid(str(answer["error"]))
        return float(answer["seconds"]), int(answer["bytes"])

    def stop(self, grace_s: float = 0.0) -> int | None:
        """End the helper, if there is one; its exit status. grace_s: for one that is dying by itself."""
        process, self._process = self._process, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if process is None:
            return None
        try:
            return process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _start(self) -> None:
        settings = self._settings
        hello = {"model_dir": settings.model_dir, "width": settings.width, "memory_bytes": settings.memory_bytes}
        try:
            self._process, self._socket = spawn_with_socket(
                self._command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what xgrammar says when it dies is of no use to anybody
            )
            self._ask(hello, START_TIMEOUT_S)
        except OSError as error:
            status = self.stop(GRACE_S)
            log.error("the grammar helper does not start (status %s): %s", status, error)
            raise _unavailable() from None

    def _ask(self, question: dict[str, Any], timeout_s: float, cpu_s: float = math.inf) -> dict[str, Any]:
        """Raises TimeoutError, or another OSError when the helper is gone."""
        assert self._socket is not None
        deadline, last_cpu_s = time.monotonic() + timeout_s, self._cpu_s() + cpu_s
        self._socket.sendall(json.dumps(question).encode() + b"\n")
        data = b""
        while not data.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            readable, _, _ = select.select([self._socket], [], [], max(0.0, min(left_s, max(LOOK_EVERY_S, cpu_s / 10))))
            if not readable:
                if left_s <= 0 or self._cpu_s() >= last_cpu_s:
                    raise TimeoutError
                continue
            piece = self._socket.recv(RECEIVE_BYTES)
            if not piece:
                raise ConnectionResetError("it ended")
            data += piece
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _cpu_s(self) -> float:
        """What the helper has used so far, to 10 ms."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _unavailable() -> RequestError:
    return Unavailable("Structured output is not available at the moment.", code="grammar_unavailable")
