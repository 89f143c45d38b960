"""A Session with a transport: timers, flow control, and one task per exchange. Knows nothing of what is served.

The door contract (every door obeys it, tests/doors holds them to it): the handler runs in a task of its own; when the
peer leaves, that task is cancelled; whatever happened, the response is closed exactly once.

When has the peer left? When the connection is lost, and also at end of file while an answer is due: a client that
closed its socket and one that only shut down its sending side look the same until something is written to them, and
nothing is written during a long prefill. Go's net/http, nginx as a proxy and uvicorn decide alike. So a client must
keep its sending side open until it has the answer; all HTTP libraries do (nc -N does not).

Reading goes on while a handler runs, since a departure is only seen by reading. It pauses beyond MAX_AHEAD_BYTES.

Writes are joined by uvloop, which sends all that was written in one turn of the loop at the end of that turn; nothing
is held back here to the next turn.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Protocol, cast

from lean_ovms.config import Config
from lean_ovms.errors import EngineFailure, RequestError, RequestTimeout, Unavailable
from lean_ovms.shapes import Handle, Request, Response

from .session import Phase, Session, error_response

MAX_AHEAD_BYTES = 65536
"""Pipelined bytes kept during an exchange before reading pauses (uvicorn: the same)."""

LINGER_S = 2.0
"""After the last answer, read and drop what still comes for so long: closing at once with unread bytes makes the
kernel send a reset, which can destroy the answer before the client has read it (RFC 9112 9.6; nginx: 5 to 30 s)."""

NEVER = float("inf")

log = logging.getLogger("lean_ovms.wire")


class Hub(Protocol):
    """What a connection needs of its server."""

    config: Config
    handle: Handle
    draining: bool

    def opened(self, connection: Connection) -> None:
        """Count a connection; the hub may refuse it."""

    def closed(self, connection: Connection) -> None:
        """Forget it."""

    def begun(self) -> None:
        """Count an exchange."""

    def ended(self) -> None:
        """The exchange has released what it held; its connection may be gone before that."""


class Connection(asyncio.Protocol):
    """One client's connection. Its deadline is one lazy timer: moving it costs two attributes, not a timer."""

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        # for good
        self._hub = hub
        self._config = hub.config
        self._loop = loop
        # while connected
        self._transport: asyncio.Transport
        self._session: Session
        self._lost = False
        self._gone = False  # nobody waits for the answer any more: what runs is cancelled
        self._discarding = False  # nothing more is read: what comes is dropped
        self._discarded = 0
        self._reading = True
        self._drained: asyncio.Future[None] | None = None  # exists while the transport has too much to send
        self._written = 0
        self._taken = 0  # of it, when we last looked
        self._awaited: Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._deadline = NEVER
        self._on_deadline: Callable[[], None] = self._close
        # while a request is answered
        self._task: asyncio.Task[None] | None = None
        self._head_sent = False
        self._releasing = False

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._session = Session(self._config, _peer_name(transport))
        _tune(transport.get_extra_info("socket"))
        # A connection that never says anything has as long as one that is slow to say it, and is closed in silence.
        self._expire_in(self._config.header_timeout_s, self._close)
        self._hub.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discard(len(data))
            return
        self._session.feed(data)
        if self._task is None:
            self._advance()
        elif self._session.ahead > MAX_AHEAD_BYTES:
            self._read(False)

    def eof_received(self) -> None:
        """The peer will send nothing more: it has left (see the head of this file). The transport closes now."""
        self._discarding = True
        self._cancel()
        self._expire_in(self._config.stream_stall_timeout_s, self.abort)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._taken = self._written - self._transport.get_write_buffer_size()
        self._expire_in(self._config.stream_stall_timeout_s, self._check_stall)

    def resume_writing(self) -> None:
        self._wake()
        self._expire_in(LINGER_S if self._discarding else None, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._discarding = True
        if self._timer is not None:
            self._timer.cancel()
        self._cancel()
        self._wake()
        self._hub.closed(self)

    # --- the server's calls

    def drain(self) -> None:
        """Close if nothing runs. What runs is finished first, and its answer says that the connection closes."""
        if self._task is None and not self._discarding and self._session.phase is Phase.IDLE:
            self._close()

    def give_up(self) -> None:
        """Cancel what runs and close. A request that has no answer yet gets a 503."""
        if self._task is None:
            self._close()
        else:
            self._cancel()

    def refuse(self, error: RequestError) -> None:
        """Answer what did not arrive whole, or was not even read, and close."""
        self._session.refuse(error)
        self._write(self._session.outgoing())
        self._linger()

    # --- reading

    def _advance(self) -> None:
        """Act on what was fed: answer a request, or set the time by which the rest of one must be here."""
        session = self._session
        request = session.next_request()
        self._write(session.outgoing())
        if request is not None:
            self._begin(request)
        elif session.phase is Phase.CLOSED:
            self._linger()
        else:
            self._await(session.phase)
            if session.unfinished:
                self._read(False)
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Others had their turn: look at the rest of what is here."""
        if not self._discarding:
            self._read(True)
            self._advance()

    def _await(self, phase: Phase) -> None:
        """Give the peer the phase's time, counted from when the phase began and not from its last byte."""
        if phase is self._awaited or (phase is Phase.IDLE and self._awaited is None):
            return
        self._awaited = phase
        if phase is Phase.IDLE:
            self._expire_in(self._config.keep_alive_timeout_s, self._close)
        elif phase is Phase.HEAD:
            self._expire_in(self._config.header_timeout_s, self._too_slow)
        else:
            self._expire_in(self._config.body_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        what = "headers" if self._session.phase is Phase.HEAD else "body"
        self.refuse(RequestTimeout(f"the request {what} did not arrive in time"))

    def _read(self, wanted: bool) -> None:
        """Pause or resume reading."""
        if wanted is not self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > 2 * self._config.max_body_bytes:
            self.abort()

    # --- the exchange

    def _begin(self, request: Request) -> None:
        self._awaited = Phase.EXCHANGE
        self._expire_in(None, self._close)
        self._hub.begun()
        self._head_sent = self._releasing = False
        self._task = self._loop.create_task(self._exchange(request))
        self._task.add_done_callback(self._exchanged)

    async def _exchange(self, request: Request) -> None:
        response = await self._ask(request)
        try:
            if not self._gone:  # else the handler answered although it was cancelled
                await self._send(response)
        except asyncio.CancelledError:
            if self._gone:
                raise
            self._fail("the response was cancelled from within")
        except Exception:
            self._fail("the response failed")
        finally:
            # A departure has nothing left to cancel from here on; interrupting this would leak what it releases.
            self._releasing = True
            await _release(response)

    async def _ask(self, request: Request) -> Response:
        """The handler's answer. The border where its bugs end: they are logged and become a 500."""
        try:
            return await self._hub.handle(request)
        except RequestError as error:
            return error_response(error)
        except asyncio.CancelledError:
            if self._gone:
                raise
            log.exception("the handler was cancelled from within")
        except Exception:
            log.exception("the handler failed")
        return error_response(_internal_error())

    async def _send(self, response: Response) -> None:
        session, body = self._session, response.body
        session.closing |= self._hub.draining
        pending = session.start(response)
        if session.streams and not isinstance(body, bytes):
            # The head leaves together with the first piece: one packet, and an early failure can still be a 500.
            async for data in body:
                if self._gone:
                    return
                if data:
                    self._answer(pending + session.chunk(data))
                    pending = b""
                    await self._writable()
            pending += session.end()
        self._answer(pending)
        await self._writable()

    def _fail(self, what: str) -> None:
        """Say that the answer broke: with a 500, or, once the head is out, by a body that visibly does not end."""
        log.exception(what)
        if not self._head_sent and not self._gone:
            self._answer(self._session.start(error_response(_internal_error())))

    def _exchanged(self, task: asyncio.Task[None]) -> None:
        """The exchange is over and what it held is released; decide what becomes of the connection."""
        self._hub.ended()
        self._task = None
        if self._lost or self._discarding:
            return
        self._session.closing |= self._hub.draining
        if self._gone:
            self._say_shutting_down()
        elif self._session.phase is Phase.EXCHANGE:
            self._truncate()
        elif self._session.phase is Phase.CLOSED:
            self._linger()
        else:
            self._read(True)
            self._advance()

    def _say_shutting_down(self) -> None:
        if not self._head_sent:
            error = Unavailable("the server is shutting down", code="shutting_down")
            self._write(self._session.start(error_response(error)))
        self._close()

    def _truncate(self) -> None:
        if self._session.end_is_visible:
            self._close()
        else:
            self.abort()

    def _cancel(self) -> None:
        """Stop what runs, once: a second cancellation would interrupt the cleaning up after the first."""
        if not self._gone and self._task is not None and not self._releasing:
            self._task.cancel()
        self._gone = True

    # --- writing

    def _answer(self, data: bytes) -> None:
        self._head_sent = True
        self._write(data)

    def _write(self, data: bytes) -> None:
        if data and not self._lost:
            self._written += len(data)
            self._transport.write(data)

    async def _writable(self) -> None:
        if self._drained is not None:
            await self._drained

    def _wake(self) -> None:
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def _check_stall(self) -> None:
        """Cut a client that took nothing since we last looked; one that is merely slow may go on."""
        taken = self._written - self._transport.get_write_buffer_size()
        if taken > self._taken:
            self._taken = taken
            self._expire_in(self._config.stream_stall_timeout_s, self._check_stall)
        else:
            log.info("cut off a client that takes nothing")
            self.abort()

    # --- closing

    def _linger(self) -> None:
        """Close so that the peer can read the last answer although it may still be sending."""
        if self._session.peer_closes or self._lost:
            self._close()
            return
        self._discarding = True
        self._read(True)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._expire_in(LINGER_S, self._close)

    def _close(self) -> None:
        """Close when everything is sent; a peer that does not take it is cut off."""
        self._discarding = True
        self._transport.close()
        if not self._lost:
            self._expire_in(self._config.stream_stall_timeout_s, self.abort)

    def abort(self) -> None:
        """Drop the connection; what runs is cancelled when the transport reports the loss."""
        self._discarding = True
        self._transport.abort()

    # --- the deadline

    def _expire_in(self, delay_s: float | None, action: Callable[[], None]) -> None:
        """Call action after delay_s (None: never), unless this is called again before."""
        self._on_deadline = action
        self._deadline = NEVER if delay_s is None else self._loop.time() + delay_s
        if self._deadline < self._timer_at and not self._lost:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def _arm(self) -> None:
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, NEVER
        if self._deadline <= self._loop.time():
            self._deadline = NEVER
            self._on_deadline()
        elif self._deadline < NEVER:
            self._arm()


async def _release(response: Response) -> None:
    try:
        await response.aclose()
    except Exception:
        log.exception("closing a response failed")


def _internal_error() -> RequestError:
    return EngineFailure("internal server error", code="internal_error")


def _tune(sock: socket.socket | None) -> None:
    """No waiting for more to send (TTFT), and notice in about two minutes a peer that vanished without a word."""
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


def _peer_name(transport: asyncio.BaseTransport) -> str:
    """host:port of an IP peer; Unix sockets have no name."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unix"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
