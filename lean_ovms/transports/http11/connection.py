"""A Session with a transport: timers, flow control, and one task per exchange. Knows nothing of what is served.

The door contract (every door obeys it, tests/doors holds them to it): the handler runs in a task of its own; when the
peer leaves, that task is cancelled; whatever happened, the response is closed exactly once.

When has the peer left? When the connection is lost, and also at end of file while an answer is due: a client that
closed its socket and one that only shut down its sending side look the same until something is written to them, and
nothing is written during a long prefill. Go's net/http, nginx as a proxy and uvicorn decide alike. So a client must
keep its sending side open until it has the answer; all HTTP libraries do (nc -N does not).

Reading goes on while a handler runs, since a departure is only seen by reading. It pauses beyond MAX_AHEAD_BYTES.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from ...config import Config
from ...errors import RequestError, RequestTimeout, Unavailable
from ...types import Handle, Request
from .cycle import Exchange
from .protocol import Phase, Session
from .sockets import peer_name, tune
from .timer import Deadline
from .writer import Writer

MAX_AHEAD_BYTES = 65536
"""Pipelined bytes kept during an exchange before reading pauses (uvicorn: the same)."""

SMALL_BYTES = 262_144
"""Unfinished requests up to this size are always welcome, however much memory large ones take."""

LINGER_S = 2.0
"""After the last answer, read and drop what still comes for so long: closing at once with unread bytes makes the
kernel send a reset, which can destroy the answer before the client has read it (RFC 9112 9.6; nginx: 5 to 30 s)."""

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

    def hold(self, delta: int) -> bool:
        """Count memory held for bodies that are still coming in; False when it is too much for all together."""

    def begun(self) -> None:
        """Count an exchange."""

    def ended(self) -> None:
        """The exchange has released what it held; its connection may be gone before that."""


class Connection(asyncio.Protocol):
    """One client's connection. Its one deadline is what the peer owes us next, or we it."""

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        # for good
        self._hub = hub
        self._config = hub.config
        self._loop = loop
        self._deadline = Deadline(loop)
        # while connected
        self._transport: asyncio.Transport
        self._session: Session
        self._out: Writer
        self._peer = ""
        self._lost = False
        self._discarding = False  # nothing more is read: what comes is dropped
        self._discarded = 0
        self._held = 0
        self._reading = True
        self._awaited: Phase | None = None
        # while a request is answered
        self._exchange: Exchange | None = None

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out = Writer(self._loop, self._transport)
        self._peer = peer_name(transport.get_extra_info("peername"))
        self._session = Session(self._config, self._peer)
        tune(transport.get_extra_info("socket"))
        # A connection that never says anything has as long as one that is slow to say it, and is closed in silence.
        self._deadline.set(self._config.header_timeout_s, self._close)
        self._hub.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discard(len(data))
            return
        self._session.feed(data)
        if self._exchange is None:
            self._advance()
        elif self._session.ahead > MAX_AHEAD_BYTES:
            self._read(False)

    def eof_received(self) -> None:
        """The peer will send nothing more: it has left (see the head of this file). The transport closes now."""
        self._discarding = True
        if self._exchange is not None:
            self._exchange.cancel()
        self._deadline.set(self._config.stream_stall_timeout_s, self.abort)

    def pause_writing(self) -> None:
        self._out.pause()
        self._deadline.set(self._config.stream_stall_timeout_s, self._check_stall)

    def resume_writing(self) -> None:
        self._out.resume()
        if self._discarding:
            self._deadline.set(LINGER_S, self._close)
        else:
            self._deadline.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._discarding = True
        self._deadline.stop()
        self._hold(0)
        if self._exchange is not None:
            self._exchange.cancel()
        self._out.close()
        self._hub.closed(self)

    # --- the server's calls

    def drain(self) -> None:
        """Close if nothing runs. What runs is finished first, and its answer says that the connection closes."""
        if self._exchange is not None:
            self._session.closing = True
        elif not self._discarding and self._session.phase is Phase.IDLE:
            self._close()
            # Clients read nothing from connections that they keep: TLS would wait 30 s for such a one to say goodbye.
            self._deadline.set(LINGER_S, self.abort)

    def give_up(self) -> None:
        """Cancel what runs and close. A request that has no answer yet gets a 503."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.cancel()

    def refuse(self, error: RequestError) -> None:
        """Answer what did not arrive whole, or was not even read, and close."""
        self._session.refuse(error)
        self._out.write(self._session.outgoing())
        self._linger()

    # --- reading

    def _advance(self) -> None:
        """Act on what was fed: answer a request, or set the time by which the rest of one must be here."""
        session = self._session
        request = session.next_request()
        self._out.write(session.outgoing())
        held_too_much = self._hold(session.held if request is None else 0)
        if request is not None:
            self._begin(request)
        elif session.phase is Phase.CLOSED:
            self._linger()
        elif held_too_much:
            self.refuse(Unavailable("too many large requests at once", code="too_many_large_requests"))
        else:
            self._await(session.phase)
            if session.unfinished:
                self._read(False)
                self._loop.call_soon(self._go_on)

    def _hold(self, size: int) -> bool:
        """Tell the hub what this connection's unfinished body takes; whether that is too much, small ones apart."""
        if size < SMALL_BYTES:
            size = 0
        if size == self._held:
            return False
        fits = self._hub.hold(size - self._held)
        self._held = size
        return size > 0 and not fits

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
            self._deadline.set(self._config.keep_alive_timeout_s, self._close)
        elif phase is Phase.HEAD:
            self._deadline.set(self._config.header_timeout_s, self._too_slow)
        else:
            self._deadline.set(self._config.body_timeout_s, self._too_slow)

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
        self._deadline.clear()
        self._session.closing |= self._hub.draining
        self._hub.begun()
        self._exchange = Exchange(self._hub.handle, self._session, self._out)
        self._exchange.begin(self._loop, request).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The exchange is over and what it held is released; decide what becomes of the connection."""
        self._hub.ended()
        exchange, self._exchange = self._exchange, None
        if self._discarding or exchange is None:
            return
        if exchange.gone:
            self._say_shutting_down(exchange)
        elif self._session.phase is Phase.EXCHANGE:
            self._truncate()
        elif self._session.phase is Phase.CLOSED:
            self._linger()
        else:
            self._read(True)
            self._advance()

    def _say_shutting_down(self, exchange: Exchange) -> None:
        if not exchange.head_sent:
            error = Unavailable("the server is shutting down", code="shutting_down")
            self._out.write(self._session.start(self._session.error(error)))
        self._close()

    def _truncate(self) -> None:
        """Close in the middle of a body so that the peer can tell."""
        if self._session.end_is_visible:
            self._close()
        else:
            self.abort()

    # --- closing

    def _check_stall(self) -> None:
        """Cut a client that took nothing since we last looked; one that is merely slow may go on."""
        if self._out.moved():
            self._deadline.set(self._config.stream_stall_timeout_s, self._check_stall)
        else:
            log.info("%s takes nothing, connection cut", self._peer)
            self.abort()

    def _linger(self) -> None:
        """Close so that the peer can read the last answer although it may still be sending."""
        self._session.drop()
        self._hold(0)
        if self._session.peer_closes or self._lost:
            self._close()
            return
        self._discarding = True
        self._read(True)
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        self._deadline.set(LINGER_S, self._close)

    def _close(self) -> None:
        """Close when everything is sent; a peer that does not take it is cut off."""
        self._discarding = True
        self._transport.close()
        if not self._lost:
            self._deadline.set(self._config.stream_stall_timeout_s, self.abort)

    def abort(self) -> None:
        """Drop the connection; what runs is cancelled when the transport reports the loss."""
        self._discarding = True
        self._transport.abort()
