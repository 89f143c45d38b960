"""A loop with a virtual clock, a transport without a socket, and handlers that play a script and record what
happens."""

from __future__ import annotations

import asyncio
import re
import selectors
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lean_ovms.config import Config
from lean_ovms.transports.http11.connection import HttpConnection
from lean_ovms.transports.http11.server_state import ServerState
from lean_ovms.types import Handle, Request, Response
from tests.streams import Iterated


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps. If the loop would wait for a timer, the clock is set to the timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise AssertionError("waiting for something that will never happen")
            self.now += timeout
        return events


class JumpLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. Waiting for something that no timer causes raises an error."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self.problems: list[dict[str, Any]] = []
        super().__init__(self._jumping)
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def time(self) -> float:
        return self._jumping.now

    def stand_still(self, seconds: float) -> None:
        """Acts as if the process had been stopped for some seconds."""
        self._jumping.now += seconds


@contextmanager
def jump_loop() -> Iterator[JumpLoop]:
    """Yields a JumpLoop. An unhandled exception that it reports fails the test."""
    loop = JumpLoop()
    try:
        yield loop
        loop.run_until_complete(asyncio.sleep(0))
        assert loop.problems == []
        assert not asyncio.all_tasks(loop)
    finally:
        loop.close()


class FakeTransport(asyncio.Transport):
    """Behaves like asyncio's socket transports. `room` is how many bytes the client still takes (None: all)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("192.0.2.7", 4711)})
        self.loop = loop
        self.protocol = protocol
        self.writes: list[bytes] = []  # the bytes that the client has read
        self.received = b""  # the bytes that the client has read
        self.room: int | None = None
        self.buffer = b""
        self.high = 65536
        self.paused = self.reading_paused = self.closing = self.eof_written = self.aborted = self.lost = False

    @property
    def ended(self) -> bool:
        """Whether the client sees an end of file."""
        return self.lost or (self.eof_written and not self.buffer)

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert data
        assert not self.eof_written, "write after write_eof"
        if self.closing:
            return
        self.writes.append(bytes(data))
        self.buffer += data
        self._flush()
        if len(self.buffer) > self.high and not self.paused:
            self.paused = True
            self.protocol.pause_writing()

    def _flush(self) -> None:
        size = len(self.buffer) if self.room is None else min(self.room, len(self.buffer))
        self.received += self.buffer[:size]
        self.buffer = self.buffer[size:]
        if self.room is not None:
            self.room -= size
        if self.paused and len(self.buffer) <= self.high // 4:
            self.paused = False
            self.protocol.resume_writing()
        if self.closing and not self.buffer:
            self._lose(None)

    def take(self, size: int | None) -> None:
        """Makes the client read this many more bytes, or everything from now on."""
        self.room = size
        self._flush()

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            if not self.buffer:
                self._lose(None)

    def abort(self) -> None:
        self.aborted = self.closing = True
        self.buffer = b""
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self.loop.call_soon(self.protocol.connection_lost, error)

    def peer_sends(self, data: bytes) -> None:
        assert not self.reading_paused, "data while reading is paused"
        if not self.closing:
            self.protocol.data_received(data)

    def peer_shuts(self) -> None:
        """Acts as if the client had closed the connection, or its sending side."""
        if not self.closing and not self.protocol.eof_received():
            self.close()

    def peer_resets(self) -> None:
        self.closing = True
        self.buffer = b""
        self._lose(ConnectionResetError())

    def write_eof(self) -> None:
        self.eof_written = True

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def pause_reading(self) -> None:
        assert not self.reading_paused
        self.reading_paused = True

    def resume_reading(self) -> None:
        assert self.reading_paused
        self.reading_paused = False


class FakeServer(ServerState):
    """A server that does not listen. `on_open` is called with each connection."""

    def __init__(self, handle: Handle, config: Config) -> None:
        super().__init__(config, handle, is_vital=lambda method, path: path == "/health")
        self.most_reserved_bytes = 1 << 40
        self.on_open: Callable[[HttpConnection], None] = lambda connection: None

    def connection_opened(self, connection: Any) -> None:
        super().connection_opened(connection)
        self.on_open(connection)


def undated(data: bytes) -> bytes:
    """Returns responses without their Date headers, which change."""
    return re.sub(rb"(?m)^Date: .{29}\r\n", b"", data)


class Wire:
    """A client's end of a Connection in virtual time."""

    def __init__(self, loop: JumpLoop, handle: Handle, config: Config | None = None, **fakes: Any) -> None:
        self.loop = loop
        self.server = FakeServer(handle, config or Config())
        for name, value in fakes.items():
            setattr(self.server, name, value)
        self.connection = HttpConnection(self.server, loop)
        self.transport = FakeTransport(loop, self.connection)
        self.connection.connection_made(self.transport)

    def run(self, seconds: float = 0.0) -> None:
        """Lets time pass. With 0, everything that is ready happens."""
        self.loop.run_until_complete(asyncio.sleep(seconds) if seconds else _turns())

    def send(self, data: bytes, seconds: float = 0.0) -> None:
        self.transport.peer_sends(data)
        self.run(seconds)

    @property
    def received(self) -> bytes:
        return self.transport.received


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Body(Iterated):
    """A streamed body that plays a script: it yields bytes, waits for numbers of seconds, and raises exceptions."""

    def __init__(self, *script: bytes | float | BaseException) -> None:
        self.script = script
        self.given = 0
        self.closed = 0
        self.cancelled = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for item in self.script:
                if isinstance(item, bytes):
                    self.given += 1
                    yield item
                elif isinstance(item, BaseException):
                    raise item
                else:
                    await asyncio.sleep(item)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def aclose(self) -> None:
        """Takes a few iterations, like releasing real resources. If it is interrupted, it counts as not done."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.closed += 1


def answering(*answers: Response | BaseException, after_s: float = 0.0) -> Handle:
    """Returns a handler that gives these answers in turn, each `after_s` seconds after its request."""
    left = iter(answers)

    async def handle(request: Request) -> Response:
        if after_s:
            await asyncio.sleep(after_s)
        answer = next(left)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return handle
