"""Checks in a separate process whether a grammar can be compiled, and how long its masks take.

The process is killed if a check takes too much CPU time, so that the result does not depend on the load of the machine.
A process that gets no CPU time is killed as well, much later. The process takes about 130 MB; it is started for the
first grammar, and stopped after a while without any. All calls come from one thread, and may block up to the time
limit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import GrammarInvalid, GrammarTooComplex, Unavailable
from ....util.child_process import spawn_with_socket
from ..feature import StructuredOutputOptions
from ..limits import GrammarBounds, GrammarCost, too_complex

if TYPE_CHECKING:
    from ....config import EngineConfig

log = logging.getLogger(__name__)

WALL_FACTOR = 10
"""Limit of the wall time of a compilation, as a multiple of its CPU time limit."""
CHECK_EVERY_S = 0.02
START_TIMEOUT_S = 120.0
"""Seconds for importing openvino_genai and loading a tokenizer (0.8 s) on a machine that is busy or just booted."""
GRACE_S = 0.5
RECEIVE_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckerSettings:
    """The settings and limits of the process that checks grammars."""

    model_dir: str
    """The directory of the model."""
    width: int
    """The number of logits of a token."""
    timeout_s: float
    """The limit of the CPU time for compiling one grammar, in seconds."""
    memory_bytes: int
    """The limit of the memory for compiling, in bytes."""
    probe_s: float = 1.0
    """The limit of the CPU time for trying a compiled grammar, in seconds."""
    pieces: Sequence[bytes] = ()
    """The bytes of each token, for a process that does not read the model's tokenizer."""
    eos: Sequence[int] = ()
    """The ids of the tokens that end a text, for a process that does not read the model's tokenizer."""

    @classmethod
    def of(cls, config: EngineConfig, width: int, *, probe_s: float = 0.0) -> CheckerSettings:
        """Returns the settings of a process that compiles grammars for a vocabulary of this width, and may try them.

        Args:
            config: The options of the engine.
            width: The number of logits of a token.
            probe_s: The limit of the CPU time for trying a grammar; 0 if the process only compiles.
        """
        limits = config.of(StructuredOutputOptions)
        return cls(
            model_dir=str(config.model_dir),
            width=width,
            timeout_s=limits.grammar_timeout_s,
            memory_bytes=limits.grammar_memory_mb << 20,
            probe_s=probe_s,
        )


class ProcessGrammarChecker:
    """A GrammarChecker with one process, which is started when it is needed."""

    def __init__(self, settings: CheckerSettings, command: Sequence[str]) -> None:
        self.settings = settings
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None while no process runs."""
        return self._process.pid if self._process else None

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        answer = self.ask(tag, bounds)
        return GrammarCost(**{**answer, "notices": tuple(answer.get("notices", ()))})

    def ask(self, tag: str, bounds: GrammarBounds) -> dict[str, Any]:
        """Returns the process's answer to a grammar. Raises GrammarRefused or Unavailable."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("the grammar process was killed (status %s); starting another one", self.stop())
        if self._process is None:
            self._start()
        try:
            cpu_s = self.settings.timeout_s + self.settings.probe_s
            answer = self._ask({"tag": tag, "bounds": asdict(bounds)}, WALL_FACTOR * cpu_s, cpu_s)
        except TimeoutError:
            self.stop()
            limit = f"{self.settings.timeout_s:g} s, or matching a few tokens more than {self.settings.probe_s:g} s"
            raise too_complex(f"compiling it took more than {limit}") from None
        except OSError:
            status = self.stop(GRACE_S)
            log.warning(
                "the grammar process exited with status %s while it compiled a grammar of %d bytes", status, len(tag)
            )
            raise too_complex("compiling it took too much memory") from None
        if "complex" in answer:
            raise GrammarTooComplex(str(answer["complex"]))
        if "error" in answer:
            raise GrammarInvalid(str(answer["error"]))
        return answer

    def stop(self, grace_s: float = 0.0) -> int | None:
        """Ends the process, by force if it does not end within `grace_s`, and returns its exit status, or None."""
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
        settings = self.settings
        first = {"model_dir": settings.model_dir, "width": settings.width, "memory_bytes": settings.memory_bytes}
        if settings.pieces:
            first |= {"pieces": [piece.decode("latin-1") for piece in settings.pieces], "eos": list(settings.eos)}
        try:
            self._process, self._socket = spawn_with_socket(
                self._command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # xgrammar's last message is of no use
            )
            self._ask(first, START_TIMEOUT_S)
        except OSError as error:
            status = self.stop(GRACE_S)
            log.error("the grammar process could not be started (status %s): %s", status, error)
            text = "Structured output is not available at the moment."
            raise Unavailable(text, code="grammar_unavailable") from None

    def _ask(self, message: dict[str, Any], timeout_s: float, cpu_s: float = math.inf) -> dict[str, Any]:
        """Sends a message and returns the reply. Raises TimeoutError, or another OSError if the process has ended."""
        assert self._socket is not None
        deadline, last_cpu_s = time.monotonic() + timeout_s, self._cpu_s() + cpu_s
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        data = bytearray()
        while not data.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            readable, _, _ = select.select(
                [self._socket], [], [], max(0.0, min(left_s, max(CHECK_EVERY_S, cpu_s / 10)))
            )
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
        """Returns the CPU time of the process so far in seconds, with a resolution of 10 ms."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
