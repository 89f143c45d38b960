"""Helper processes that decode untrusted files.

They are started when needed, kept a while, and may be killed at any time.

Files are decoded in processes because a thread cannot be stopped, and because a fault of a decoder must not crash the
server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, TypeVar

from ...api.services import Service
from ...errors import BadRequest, RequestError, Unavailable
from ...media.file_slice import FileSlice
from ...observability.records import current_client
from ...util.child_process import import_path, spawn_with_socket
from ...util.concurrency import Budget, Lease
from ...util.resources import reserve

log = logging.getLogger("lean_ovms.media")

T = TypeVar("T")
START_S = 30.0
"""Added to the time limit of a process's first job, for importing its libraries on a busy machine."""

KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
"""The environment variables that a helper inherits: neither the API key nor any other secret."""

IDLE_S = 120.0
"""Seconds without a job after which the processes of a pool end."""

PIECE_BYTES = 1 << 18
"""Bytes of a file, or of an answer, that one call copies, so that no call copies much at once."""

MAX_ANSWER = 1 << 18
"""The most bytes of the JSON object in an answer; the times of 4096 frames take half of that."""

SEND_BUFFER = 1 << 20
"""Bytes: a large file is handed over in fewer pieces, which halves the CPU time of that (2026-11)."""


class Helper:
    """A helper process with a socket pair to it."""

    name: ClassVar[str]
    """What it is, in the log."""
    work: ClassVar[str]
    """What it does with a file, in errors."""
    invalid: ClassVar[str]
    """The beginning of the error for a broken file, which `work` follows."""
    unavailable: ClassVar[tuple[str, str]]
    """The message and the code of the error if it cannot be started."""
    param: ClassVar[str | None] = None
    """The field that errors name."""

    def __init__(self, command: Sequence[str]) -> None:
        self.reusable = False
        """Whether it is idle, and nothing of the last job is left on the pipe."""
        self._command = command
        self._popen: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before it is started."""
        return self._popen.pid if self._popen is not None else 0

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Starts the process if necessary, and returns the streams from and to it. Raises OSError."""
        if self._reader is None or self._writer is None:
            ours = self._spawn()
            try:
                self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            except BaseException:
                ours.close()
                raise
            self._socket = ours
        return self._reader, self._writer

    def _spawn(self) -> socket.socket:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._popen, ours = spawn_with_socket(  # forking takes 1 ms
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the libraries' messages about damaged files are of no use
            env={**kept, **import_path()},
        )
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return ours

    async def send(self, job: dict[str, Any], data: bytes | str | memoryview | FileSlice, start: int = 0) -> None:
        """Sends a job and its file.

        Args:
            job: The object that describes the job, to which the number of bytes is added.
            data: The file, or a text in ASCII with the file in base64.
            start: The offset in `data` at which the file begins.

        Raises:
            OSError: The process cannot be started, or has ended.
        """
        _, writer = await self.streams()
        writer.write(_line(job | {"bytes": len(data) - start}))
        for begin in range(start, len(data), PIECE_BYTES):
            piece = data[begin : begin + PIECE_BYTES]
            writer.write(piece.encode("ascii", "replace") if isinstance(piece, str) else piece)
            await writer.drain()

    async def send_open(self, job: dict[str, Any], descriptor: int) -> None:
        """Sends a job together with an open file. No other data may be in transit to the process. Raises OSError."""
        await self.streams()
        assert self._socket is not None
        socket.send_fds(self._socket, [_line(job)], [descriptor])

    async def read_answer(self) -> dict[str, Any]:
        """Reads the JSON object of an answer, as `helper_process.write_answer` writes it.

        Raises BadRequest for an error of the file, and OSError or EOFError if the process has ended or does not answer
        in this form.
        """
        reader, _ = await self.streams()
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_ANSWER:
            raise OSError("the answer has a wrong size")
        try:
            answer = dict(json.loads(await reader.readexactly(size)))
        except (ValueError, TypeError):
            raise OSError("the answer is not a JSON object") from None
        if "error" in answer:
            self.reusable = True
            raise BadRequest(str(answer["error"]), code=answer.get("code"), param=self.param)
        return answer

    async def read_bytes(self, size: Any, most: int) -> bytes:
        """Reads the bytes that follow an answer, in pieces.

        Args:
            size: Their number, as the answer states it.
            most: The most bytes that the job may have as its result.

        Raises:
            OSError: The number is none, or too large.
            EOFError: The process has ended.
        """
        if not isinstance(size, int) or not 0 <= size <= most:
            raise OSError("the answer states a wrong number of bytes")
        reader, _ = await self.streams()
        found = reserve(size)
        while missing := size - found.tell():
            piece = await reader.read(min(missing, PIECE_BYTES))
            if not piece:
                raise EOFError
            found.write(piece)
        return found.getvalue()

    async def answered(self, exchange: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Waits for what the process answers to a job, which takes at most `timeout_s`. Raises RequestError."""
        try:
            return await asyncio.wait_for(exchange, timeout_s if self.pid else timeout_s + START_S)
        except asyncio.TimeoutError:
            raise BadRequest(f"{self.work} took longer than {timeout_s:g} s", param=self.param) from None
        except (OSError, EOFError, LookupError, TypeError, ValueError) as error:  # the last three: it answers nonsense
            raise self._exit_error(error) from None

    def _exit_error(self, error: Exception) -> RequestError:
        """Returns the error of the request, given the error by which the end of the process was noticed."""
        if not self.pid:
            log.error("the %s could not be started: %s", self.name, error)
            message, code = self.unavailable
            return Unavailable(message, code=code)
        log.warning("the %s exited with status %s while %s", self.name, self._popen and self._popen.poll(), self.work)
        return BadRequest(f"{self.invalid}: {self.work} took too much memory or time", param=self.param)

    def kill(self) -> None:
        """Ends the process, without waiting until the system has freed its memory: 25 ms for 50 MB (2026-11)."""
        if self._writer is not None:
            self._writer.transport.abort()
        if self._popen is not None:
            self._popen.kill()
            threading.Thread(target=self._popen.wait, name="reaper", daemon=True).start()


def _line(job: dict[str, Any]) -> bytes:
    return json.dumps(job).encode() + b"\n"


H = TypeVar("H", bound=Helper)


class HelperPool(Service, Generic[H]):
    """Lends helpers, each for one job, and keeps those that can be used again. Clients whose jobs wait take turns."""

    def __init__(
        self,
        kind: Callable[[Sequence[str]], H],
        command: Sequence[str],
        slots: Budget,
        *,
        kept: int,
        idle_s: float = IDLE_S,
    ) -> None:
        """Creates a pool without processes.

        Args:
            kind: The class of the helpers.
            command: The command that starts a process.
            slots: The number of jobs at once.
            kept: The most processes that are kept without a job.
            idle_s: The seconds after the last job after which these are ended.
        """
        self.slots = slots
        self.command = command
        self._kind = kind
        self._kept = kept
        self._idle_s = idle_s
        self._idle: list[H] = []
        self._leases: dict[H, Lease] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """The process ids of the helpers that are idle."""
        return [helper.pid for helper in self._idle]

    async def acquire(self) -> H:
        """Returns a helper for a job, after which `release` must be called. Raises Unavailable."""
        lease = await self.slots.acquire(1, current_client())
        helper = self._alive() or self._kind(self.command)
        helper.reusable = False
        self._leases[helper] = lease
        return helper

    def release(self, helper: H) -> None:
        """Keeps a helper whose job is done, or kills it if it cannot be used again or there are enough."""
        if helper.reusable and len(self._idle) < self._kept:
            self._idle.append(helper)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self.stop)
        else:
            helper.kill()
        self._leases.pop(helper).release()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[H]:
        """Lends a helper for the job of a `with` block. Raises Unavailable."""
        helper = await self.acquire()
        try:
            yield helper
        finally:
            self.release(helper)

    def stop(self) -> None:
        """Ends the idle processes. The next job starts one again."""
        if self._timer is not None:
            self._timer.cancel()
        while self._idle:
            self._idle.pop().kill()

    async def close(self) -> None:
        """Ends the idle processes. Idempotent."""
        self.stop()

    def _alive(self) -> H | None:
        """Returns an idle helper whose process is alive, or None: a dead one would make its file seem broken."""
        while self._idle:
            helper = self._idle.pop()
            if helper.alive:
                return helper
            helper.kill()
        return None
