"""One life of an engine child: start it, wait until it is ready, notice its death, stop it.

Knows a process and a pipe, and the first record that comes through it. What the others mean, and whether there is a
next life, is decided by the client. A Child is used once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import cast

from ...errors import StartError
from .. import protocol
from .prestart import spawn

log = logging.getLogger("lean_ovms.engine")

GRACE_S = 2.0
"""How long a child may take to exit by itself once the pipe is closed, and again after SIGTERM."""


class Child(asyncio.Protocol):
    """The process and our end of its pipe.

    deliver gets all records after Ready. lost is called once if the pipe of a child that was ready ends, whoever
    ended it; from then on nothing is delivered. why: the reason of the end where one is known.
    """

    def __init__(self, deliver: Callable[[list[protocol.Record]], None], lost: Callable[[Child], None]) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._deliver = deliver
        self._lost = lost
        self.pid = 0
        self.why = ""
        self.ended = False  # the pipe; the process may last a little longer
        self._forced = False  # it is killed by us
        self._decoder = protocol.Decoder()
        self._ready: asyncio.Future[protocol.Ready] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """The process exists."""
        return self._process is not None and not self._exited.done()

    # --- life ---

    async def start(self, command: Sequence[str], load: protocol.Load, timeout_s: float) -> protocol.Ready:
        """Spawn and greet. Raises StartError, with the child gone, when it dies, refuses, or takes longer."""
        try:
            self._process, ours = spawn(command)
            self.pid = self._process.pid
            self._watch_exit()
            return await self._handshake(ours, load, timeout_s)
        except OSError as error:
            raise StartError(f"cannot start the engine: {error.strerror or error}") from error

    async def _handshake(self, ours: socket.socket, load: protocol.Load, timeout_s: float) -> protocol.Ready:
        late = f"the model did not load within {timeout_s:g} s (--engine_load_timeout_s)"
        timer = self._loop.call_later(timeout_s, self.kill, late)
        try:
            await self._loop.create_unix_connection(lambda: self, sock=ours)
            self.send(load)
            return await self._ready
        except BaseException:
            self.kill("given up while loading")
            if self._transport is None:
                ours.close()
            raise
        finally:
            timer.cancel()

    def send(self, record: protocol.Record) -> None:
        """Write one record. What a child that is gone no longer reads is dropped: its death answers for it."""
        self.write(protocol.encode([record]))

    def write(self, frame: bytes) -> None:
        """Write one encoded frame; never blocks (what the child does not read yet is kept, bounded by the requests)."""
        if not self.ended and self._transport is not None:
            self._transport.write(frame)

    def kill(self, why: str) -> None:
        """End it now, together with what it started; the first reason given is the one that is told."""
        self._hang_up(why)
        self._force()

    async def stop(self) -> None:
        """Close the pipe and wait until the process is gone; SIGTERM and SIGKILL help after GRACE_S each."""
        self._hang_up("stopped")
        if self._process is None:
            return
        try:
            if not await self._exits_within(GRACE_S):
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
                records = self._greet(records)
            if records:
                self._deliver(records)
        except (protocol.FrameError, TypeError, ValueError, KeyError, AttributeError) as error:
            ours = not isinstance(error, protocol.FrameError)  # then it may as well be a fault of the receiver
            log.error("engine %d sent what cannot be understood: %s", self.pid, error, exc_info=ours)
            self.kill("it sent something that is not a frame")

    def _greet(self, records: list[protocol.Record]) -> list[protocol.Record]:
        match records:
            case [protocol.Ready() as ready, *rest]:
                self._ready.set_result(ready)
                return rest
            case [protocol.LoadFailed(message=message), *_]:
                self._hang_up(message)
            case [other, *_]:
                raise protocol.FrameError(f"{other.kind} before ready")
        return []

    def eof_received(self) -> None:
        self._hang_up("")  # closes at once, also when the child left something unread

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if not self._exited.done():
            self._timer = self._loop.call_later(GRACE_S, self._force)
        if self._was_ready():
            self._lost(self)
        self._settle()

    def _hang_up(self, why: str) -> None:
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

    # --- the process ---

    def _watch_exit(self) -> None:
        """No polling and no SIGCHLD handler, which would be the main thread's: a pidfd, or else a waiting thread."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:  # Linux before 5.3, or a container that forbids it
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
            return
        self._loop.add_reader(pidfd, self._on_pidfd, pidfd)

    def _on_pidfd(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._reap()

    def _wait_in_thread(self) -> None:
        with contextlib.suppress(ChildProcessError):  # somebody has reaped it for us
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left who wants to know
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        assert self._process is not None
        self._signal_group()  # before the wait: as long as the zombie lies there the group's number is its own
        status = self._process.wait()
        self._exited.set_result(status)
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended and self._transport is not None:
            # Frames that it sent at last are still read; a pipe that somebody else holds open must not keep us waiting.
            self._timer = self._loop.call_later(GRACE_S / 4, self._transport.abort)
        log.info("engine %d is gone: %s", self.pid, self._end(status))
        self._settle()

    def _force(self) -> None:
        self._forced |= self.alive
        self._signal_group()

    def _signal_group(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _was_ready(self) -> bool:
        return self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None

    def _settle(self) -> None:
        """Both pipe and process are gone: a start that still waits has failed."""
        if self.ended and self._exited.done() and not self._ready.done():
            why = self.why or f"the engine died while loading the model: {self._end(self._exited.result())}"
            self._ready.set_exception(StartError(why))

    def _end(self, status: int) -> str:
        """The exit in words, with a guess at who has killed a child that we have not."""
        guess = " (out of memory?)" if status == -signal.SIGKILL and not self._forced else ""
        return describe_exit(status) + guess


def describe_exit(status: int) -> str:
    """A Popen.returncode in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"killed by {name}"
