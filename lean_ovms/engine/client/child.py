"""Starts one engine process, waits until it is ready, notices its death, stops it, and logs what it prints.

This module knows a process, its output, a pipe and the first record that comes through it. EngineClient handles all
other records and restarts.

OpenVINO and GenAI print to stdout and stderr, and so does Python when it fails; the process's own log uses another file
descriptor. What is printed becomes log records: one per line, or one for a whole traceback. The pipe is read as fast as
it fills, since a full pipe would stop the engine. Records above a limit are only counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from typing import Any, NamedTuple, cast

from ...errors import StartError
from ...observability.logging import safe
from ...util.child_process import wait_unreaped
from ...util.resources import lacks_thread, with_memory_limit, with_thread_limits
from .. import protocol
from .prestart import spawn

log = logging.getLogger("lean_ovms.engine")

CAUSES = {
    "SIGKILL": " (out of memory?)",
    "SIGBUS": " (was a file of the model truncated, overwritten or unreadable while it was in use?)",
}
"""The likely cause of a signal that this process did not send."""
KILLED_BY = "killed by "
GRACE_S = 2.0
"""Seconds in which a process may exit after its pipe is closed, unless it needs more, and again after SIGTERM."""


class Child(asyncio.Protocol):
    """An engine process and the front end's end of its pipe. It is used for one process only.

    `deliver` is called with all records after Ready. `on_lost` is called once, if the pipe of a process that was ready
    ends for whatever reason; no records are delivered after that.
    """

    def __init__(
        self,
        deliver: Callable[[list[protocol.Record]], None],
        on_lost: Callable[[Child], None],
        grace_s: float = GRACE_S,
    ) -> None:
        """Prepares a child; `start` starts the process.

        Args:
            deliver: Called with the records of each frame.
            on_lost: Called once if the process is lost after it was ready.
            grace_s: Seconds in which the process may exit by itself after the pipe is closed.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._deliver = deliver
        self._on_lost = on_lost
        self._grace_s = grace_s
        self.pid = 0
        self.why = ""
        """The reason why the process ended, if it is known."""
        self.ended = False  # the pipe; the process may last a little longer
        self._forced = False  # killed by this process
        self._decoder = protocol.Decoder()
        self._ready: asyncio.Future[protocol.Ready] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._process: subprocess.Popen[bytes] | None = None
        self._output: OutputLog | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and not self._exited.done()

    def know(self, records: Iterable[type[Any]]) -> None:
        """Adds a task's record classes to those that can be received."""
        self._decoder.know(records)

    # --- life ---

    async def start(self, command: Sequence[str], load: protocol.Load, timeout_s: float) -> protocol.Ready:
        """Starts the process, and has it load the model.

        Raises StartError, after ending the process, if it dies, cannot load the model, or exceeds timeout_s.

        Args:
            command: The command that starts the process.
            load: The record that says what to load.
            timeout_s: The most seconds until the model is loaded.
        """
        try:
            self._process, ours, output = spawn(command)
            self.pid = self._process.pid
            self._output = OutputLog(output, self.pid)
            self._watch_exit()
            return await self._handshake(ours, load, timeout_s)
        except OSError as error:
            why = error.strerror or str(error)
            why = with_thread_limits(why) if lacks_thread(why) else why
            raise StartError(f"cannot start the engine: {why}") from error

    async def _handshake(self, ours: socket.socket, load: protocol.Load, timeout_s: float) -> protocol.Ready:
        late = f"the model did not load within {timeout_s:g} s (--engine_load_timeout_s)"
        timer = self._loop.call_later(timeout_s, self.kill, late)
        try:
            await self._loop.create_unix_connection(lambda: self, sock=ours)
            self.send(load)
            return await self._ready
        except BaseException:
            self.kill("stopped while loading")
            if self._transport is None:
                ours.close()
            raise
        finally:
            timer.cancel()

    def send(self, record: protocol.Record) -> None:
        """Sends one record. It is dropped if the process has died, which ends all requests anyway."""
        self.write(protocol.encode([record]))

    def write(self, frame: bytes) -> None:
        """Sends one encoded frame without blocking. Unread frames are buffered; the number of requests limits them."""
        if not self.ended and self._transport is not None:
            self._transport.write(frame)

    def kill(self, why: str) -> None:
        """Kills the process and its own children at once. If several reasons are given, the first is reported."""
        self._close_pipe(why)
        self._force()

    async def stop(self) -> None:
        """Closes the pipe, and waits for the exit; sends SIGTERM after grace_s, and SIGKILL after GRACE_S more."""
        self._close_pipe("" if self.ended else "stopped")  # a crash keeps its own reason
        if self._process is None:
            return
        try:
            if not await self._exits_within(self._grace_s):
                self._process.terminate()
                await self._exits_within(GRACE_S)
        finally:
            self._force()
        await asyncio.wait([self._exited])

    async def _exits_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self._exited], timeout=seconds)
        return bool(done)

    # --- the pipe (asyncio.Protocol) ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            records = self._decoder.feed(data)
            if not self._ready.done():
                records = self._handle_first(records)
            if records:
                self._deliver(records)
        except (protocol.FrameError, TypeError, ValueError, KeyError, AttributeError) as error:
            ours = not isinstance(error, protocol.FrameError)  # then it may be a bug of the receiver
            log.error("engine %d sent invalid records: %s", self.pid, error, exc_info=ours)
            self.kill("it sent invalid data")

    def _handle_first(self, records: list[protocol.Record]) -> list[protocol.Record]:
        match records:
            case [protocol.Ready() as ready, *rest]:
                self._ready.set_result(ready)
                return rest
            case [protocol.LoadFailed(message=message), *_]:
                self._close_pipe(message)
            case [other, *_]:
                raise protocol.FrameError(f"{other.kind} was sent before ready")
        return []

    def eof_received(self) -> None:
        self._close_pipe("")  # closes at once, also when the child left records unread

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if not self._exited.done():
            self._timer = self._loop.call_later(self._grace_s, self._force)
        if self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None:
            self._on_lost(self)
        self._fail_start()

    def _close_pipe(self, why: str) -> None:
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

    # --- the process ---

    def _watch_exit(self) -> None:
        """Waits for the exit of the process with a pidfd, without polling, or in a thread where that is impossible."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # macOS, Linux before 5.3, or a container that forbids it
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
            return
        self._loop.add_reader(pidfd, self._on_pidfd, pidfd)

    def _on_pidfd(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._reap()

    def _wait_in_thread(self) -> None:
        with contextlib.suppress(ChildProcessError):  # it was reaped elsewhere
            wait_unreaped(self.pid)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        assert self._process is not None
        self._signal_group()  # before the wait: as long as the zombie exists, no other group gets its number
        status = self._process.wait()
        if self._output is not None:
            self._output.finish()  # before its end is logged: the reason is often in the last line
        self._exited.set_result(status)
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended and self._transport is not None:
            # The last frames are still read; a pipe that another process holds open must not delay the end.
            self._timer = self._loop.call_later(GRACE_S / 4, self._transport.abort)
        log.log(
            logging.ERROR if self._crashed(status) else logging.INFO,
            "engine %d is gone: %s",
            self.pid,
            self._describe(status),
        )
        self._fail_start()

    def _force(self) -> None:
        self._forced |= self.alive
        self._signal_group()

    def _signal_group(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _fail_start(self) -> None:
        """Makes a pending `start` fail once both the pipe and the process have ended."""
        if self.ended and self._exited.done() and not self._ready.done():
            status = self._exited.result()
            how = self._describe(status)
            why = self.why or f"the engine died while loading the model: {with_memory_limit(how)}"
            killed = status < 0 and self._crashed(status)
            self._ready.set_exception(StartError(why, temporary=killed))

    def _crashed(self, status: int) -> bool:
        return status != 0 and not self._forced and not self.why

    def _describe(self, status: int) -> str:
        """Describes the exit, with the last output after a crash, and the likely cause of an external signal."""
        exit_words = describe_exit(status)
        cause = "" if self._forced else CAUSES.get(exit_words.removeprefix(KILLED_BY), "")
        words = self._output.last_words if self._output is not None and self._crashed(status) else ""
        return exit_words + cause + (f"; its last output: {words}" if words else "")


def describe_exit(status: int) -> str:
    """Describes the `returncode` of a subprocess.Popen in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return KILLED_BY + name


# --- its output

output_log = logging.getLogger("lean_ovms.engine.output")

QUIET_S = 0.05
"""Seconds after which a record is complete if no other line follows."""
MAX_LINE = 4096
"""The most bytes of a line; the rest of the line is dropped."""
MAX_LINES = 200
"""The most lines of a record; longer output is continued in the next record."""
MAX_RECORDS = 100
"""The most records in WINDOW_S seconds; the lines of further records are only counted."""
WINDOW_S = 1.0
SHOWN_LINES = 5
"""The number of lines of a record that are shown as the last words of a process."""
LAST_S = 10.0
"""The greatest age, in seconds, of a record that is shown as the last words of a process."""
READ_BYTES = 1 << 16
MAX_LAST_READS = 64

LEVELS = {
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
TAG = re.compile(rf"\[\s*({'|'.join(LEVELS)})\s*\]:?\s*", re.IGNORECASE)
"""The beginnings of the lines that GenAI and OpenVINO write."""
FAILURE = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|Exception ignored |Exception in thread"
    r"|--- Logging error ---|(?:Current thread|Thread) 0x|terminate called|LLVM ERROR"
)
"""Matches the first line of a traceback or of the C++ runtime's last words; all further lines belong to it."""
WARNING = re.compile(r"\S+:\d+: \w*Warning: ")


class Output(NamedTuple):
    """A record to log, whose lines after the first are indented so that none looks like one of the server's own."""

    level: int
    """The level, as the module logging numbers levels."""
    text: str
    """The text, with its lines separated by newlines."""
    lines: int
    """The number of its lines."""


class Grouper:
    """Groups the bytes of the output into records."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._cut = 0  # bytes left out of it
        self._level = logging.INFO
        self._lines: list[str] = []  # of the record that may still be continued
        self._takes_all = False  # whether lines that are not indented continue the record, too

    @property
    def pending(self) -> bool:
        """Whether further lines may continue the current record."""
        return bool(self._lines)

    def feed(self, data: bytes) -> list[Output]:
        """Takes bytes of the output, and returns the records that are complete."""
        found: list[Output] = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._extend(part)
            found += self._end_line()
        self._extend(rest)
        return found

    def flush(self, *, last: bool = False) -> list[Output]:
        """Returns the records that no further line can continue; the last output includes a line without its end."""
        found = self._end_line() if last and self._line else []
        if self._lines:
            found.append(Output(self._level, "\n    ".join(self._lines), len(self._lines)))
            self._lines = []
        return found

    def _extend(self, part: bytes) -> None:
        taken = part[: MAX_LINE - len(self._line)]
        self._line += taken
        self._cut += len(part) - len(taken)

    def _end_line(self) -> list[Output]:
        # What a terminal would show of a progress bar: the text after the last carriage return.
        text = self._line.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
        shown = safe(text, MAX_LINE) + (f"… ({self._cut} bytes left out)" if self._cut else "")
        self._line.clear()
        self._cut = 0
        tag = TAG.match(text)
        indented = text[:1].isspace()
        if self._lines and len(self._lines) < MAX_LINES and (indented or (self._takes_all and not tag)):
            if text:
                self._lines.append(shown)
            return []
        found = self.flush()
        if text:
            self._begin(shown, tag)
        return found

    def _begin(self, text: str, tag: re.Match[str] | None) -> None:
        self._takes_all = FAILURE.match(text) is not None
        if tag is not None:
            self._level = LEVELS[tag[1].upper()]
            text = text[tag.end() :]
        elif self._takes_all:
            self._level = logging.ERROR
        else:
            self._level = logging.WARNING if WARNING.match(text) else logging.INFO
        self._lines = [text]


def _shortened(text: str) -> str:
    """Returns the beginning and the end of a record in one line."""
    lines = [line.strip() for line in text.split("\n")]
    return " ".join(lines if len(lines) <= SHOWN_LINES else [*lines[:2], "…", *lines[2 - SHOWN_LINES :]])


class OutputLog:
    """Reads the output pipe of one process, and logs it."""

    def __init__(self, pipe: FileIO, pid: int) -> None:
        """Begins to read, in a running event loop, the non-blocking pipe of a process, which this object closes."""
        self._pipe = pipe
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._grouper = Grouper()
        self._timer: asyncio.TimerHandle | None = None
        self._window: asyncio.TimerHandle | None = None
        self._logged = 0  # in this window
        self._dropped = 0
        self._last: deque[tuple[float, str]] = deque(maxlen=3)
        self._loop.add_reader(pipe.fileno(), self._on_readable)

    @property
    def last_words(self) -> str:
        """The records of the last seconds in one line, for a message about the end of the process; "" for none."""
        since = time.monotonic() - LAST_S
        return " | ".join(_shortened(text) for at, text in self._last if at >= since)

    def finish(self) -> None:
        """Logs the remaining output of a process that has ended, and closes the pipe. Idempotent."""
        for _ in range(MAX_LAST_READS):  # a child of the process may go on writing, without an end
            if not self._read():
                break
        self._close()

    def _on_readable(self) -> None:
        if self._read() == b"":
            self._close()
        elif self._grouper.pending:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(QUIET_S, self._flush)

    def _read(self) -> bytes | None:
        """Reads and logs the available output, and returns it; None if there is none, b"" if the pipe is closed."""
        if self._pipe.closed:
            return b""
        data: bytes | None = self._pipe.read(READ_BYTES)
        self._emit(self._grouper.feed(data or b""))
        return data

    def _flush(self, *, last: bool = False) -> None:
        self._emit(self._grouper.flush(last=last))

    def _close(self) -> None:
        if self._pipe.closed:
            return
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        self._flush(last=True)
        for timer in (self._timer, self._window):
            if timer is not None:
                timer.cancel()
        self._end_window()

    def _emit(self, records: list[Output]) -> None:
        now = time.monotonic()
        for record in records:
            self._last.append((now, record.text))
            if self._window is None:
                self._window = self._loop.call_later(WINDOW_S, self._end_window)
            if self._logged < MAX_RECORDS:
                self._logged += 1
                output_log.log(record.level, "engine %d: %s", self._pid, record.text)
            else:
                self._dropped += record.lines

    def _end_window(self) -> None:
        self._window = None
        self._logged = 0
        if self._dropped:
            output_log.warning("engine %d: %d more lines within %g s were left out", self._pid, self._dropped, WINDOW_S)
            self._dropped = 0
