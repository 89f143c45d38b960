"""Runs a ServerProtocol on an asyncio transport, with timeouts, flow control, and one task per request.

The client counts as gone if the connection is lost, and also at end of file while a response is due. A client that
closed its socket and one that only shut down its sending side look the same until something is written to them, and
nothing is written during a long prefill. Go's net/http, nginx as a proxy and uvicorn do the same. So a client must keep
its sending side open until it has the response; all HTTP libraries do (nc -N does not).

Reading continues while a handler runs, since only a read reports that the client has left. It pauses beyond
MAX_AHEAD_BYTES.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ...errors import InternalError, MissingExtra, RequestError, RequestTimeout, Unavailable
from ...types import ByteStream, Handle, Request, Response, Switch
from ...types.push import Sink
from ..cycle import RequestResponseCycle, ResponseWriter
from .protocol import Phase, ServerProtocol
from .request_parser import RequestHead
from .server_state import ServerState, client_of, too_many_connections

if TYPE_CHECKING:
    from .switching import MakeConnection, SwitchedConnection

log = logging.getLogger("lean_ovms.transports")

NEVER = float("inf")
LATE_S = 0.5
"""If a timer fires this many seconds too late, the process was stopped meanwhile (SIGSTOP, a paused machine)."""
GRACE_S = 0.1
"""Seconds after a deadline in which data that arrived in time is still read, instead of answering 408 or nothing."""


class Deadline:
    """A timer that is cheap to postpone.

    Postponing sets two attributes (0.1 us). A new timer would cost 0.4 us on uvloop or 1.1 us on asyncio, and leave a
    cancelled one in asyncio's heap. If the timer fires too early, it is armed again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._time = NEVER
        self._action: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_time = NEVER

    def set(self, delay_s: float, action: Callable[[], None]) -> None:
        """Calls `action` after delay_s seconds, replacing the action set before."""
        self._action = action
        self._time = self._loop.time() + delay_s
        if self._time < self._timer_time:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def clear(self) -> None:
        """Cancels the action; the timer of the loop keeps running."""
        self._time = NEVER
        self._action = None

    def stop(self) -> None:
        """Cancels the action and the timer of the loop. It can be set again."""
        self.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_time = None, NEVER

    def _arm(self) -> None:
        self._timer_time = self._time
        self._timer = self._loop.call_at(self._time, self._fire)

    def _fire(self) -> None:
        due = self._timer_time
        self._timer, self._timer_time = None, NEVER
        action = self._action
        if action is None:
            return
        now = self._loop.time()
        if now - due > LATE_S:
            self._time = max(self._time, now + GRACE_S)
        if self._time > now:
            self._arm()
            return
        self.clear()
        action()


MAX_AHEAD_BYTES = 65536
"""The most pipelined bytes kept during a response before reading pauses, the same as in uvicorn."""

SMALL_BYTES = 262_144
"""The size in bytes up to which unfinished requests are always accepted, however much memory large ones use."""

LARGE_READ_BYTES, TURN_BYTES = 65_536, 1 << 18
"""The bytes from which reads are counted, and the most that one connection reads in an iteration of the loop."""

LINGER_S = 2.0
"""Seconds after the last response in which further data is read and dropped. Closing at once with unread data makes the
kernel send a reset, which can destroy the response before the client has read it (RFC 9112 9.6; nginx: 5 to 30 s)."""

SURPLUS_S = 2.0
"""Seconds in which the only request of a connection beyond the limits must arrive completely."""


class HttpConnection(asyncio.Protocol):
    """The connection of one client. It has a single deadline, for the next step of the peer or of the server."""

    def __init__(self, server: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._config = server.config
        self._loop = loop
        self._deadline = Deadline(loop)
        # Set when the client has connected.
        self._transport: asyncio.Transport
        self._protocol: ServerProtocol
        self._writer: ResponseWriter
        self.client = ""  # whom it belongs to, for the limits
        self._peer = ""
        self._surplus = False
        self._idle_since = 0.0
        self._lost = False
        self._discarding = False  # nothing more is parsed: what comes is dropped
        self._discarded = 0
        self._reserved = 0
        self._reading = True
        self._read_in_turn = 0  # bytes of large reads
        self._timed_phase: Phase | None = None
        # Set while a request is answered.
        self._cycle: Http11Cycle | None = None
        self._switched: SwitchedConnection | None = None

    # --- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = ResponseWriter(self._loop, self._transport)
        peer = transport.get_extra_info("peername")
        self._peer = peer_name(peer)
        self.client = client_of(peer)
        self._idle_since = self._loop.time()
        self._protocol = ServerProtocol(self._config, self._peer)
        self._protocol.check_heads(self._check_head)
        tune(transport.get_extra_info("socket"))
        # A connection without a single byte gets the time of a slow head, and is closed without a response.
        self._deadline.set(self._config.header_timeout_s, self._close)
        self._server.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discard(len(data))
            return
        self._protocol.feed(data)
        if self._cycle is None:
            self._advance()
        elif self._switched is None:
            self._limit_ahead()
        else:
            self._switched.feed(self._protocol.take_rest())
        if len(data) >= LARGE_READ_BYTES:
            self._limit_turn(len(data))

    def _limit_turn(self, size: int) -> None:
        """Pauses reading from a client that sends faster than the loop processes, until others have had their turn.

        uvloop reads up to 32 times in a row: 8 MB, which take 25 ms if the memory is new.
        """
        if not self._read_in_turn:
            self._loop.call_soon(self._end_turn)
        self._read_in_turn += size
        if self._read_in_turn >= TURN_BYTES:
            self.set_reading(False)

    def _end_turn(self) -> None:
        self._read_in_turn = 0
        if self._switched is not None:
            self._switched.resume()
        elif self._cycle is not None:
            self._limit_ahead()
        else:
            self.set_reading(self._discarding or not self._protocol.has_more)

    def eof_received(self) -> None:
        """Closes the transport at end of file, since the client counts as gone (see the module's docstring)."""
        self._discarding = True
        if self._cycle is not None:
            self._cycle.cancel()
        self._deadline.set(self._config.stream_stall_timeout_s, self.abort)

    def pause_writing(self) -> None:
        self._writer.pause()
        self._deadline.set(self._config.stream_stall_timeout_s, self._check_stall)

    def resume_writing(self) -> None:
        self._writer.resume()
        if self._discarding:
            self._deadline.set(LINGER_S, self._close)
        else:
            self._deadline.clear()
            if self._switched is not None:
                self._switched.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._discarding = True
        self._deadline.stop()
        self.reserve_memory(0)
        self._protocol.discard()
        if self._cycle is not None:
            self._cycle.cancel()
        self._writer.close()
        self._server.connection_closed(self)

    # --- the server's calls

    @property
    def idle_since(self) -> float | None:
        """The loop time since when the peer could have begun a request; None if it has begun one, or must not."""
        if self._cycle is not None or self._discarding or self._protocol.phase is not Phase.IDLE:
            return None
        return self._idle_since

    def restrict(self) -> None:
        """Restricts the connection to a single request, which must pass the limits' check_head and arrive soon."""
        self._surplus = True
        self._protocol.check_heads(self._server.limits.check_head)
        self._deadline.set(SURPLUS_S, lambda: self.refuse(too_many_connections()))

    def _check_head(self, head: RequestHead) -> None:
        """Raises RequestError for a request whose body should not be read; one without a body is not checked."""
        if head.length != 0:
            self._server.check_head(Request(head.method, head.path, head.query, head.headers, b"", self._peer))

    def drain(self) -> None:
        """Closes the connection if it is idle; otherwise the running request's response announces the close."""
        if self._cycle is not None:
            self._protocol.closing = True
        elif not self._discarding and self._protocol.phase is Phase.IDLE:
            self._close()
            # Clients do not read from idle connections: TLS would wait 30 s for the client's close_notify.
            self._deadline.set(LINGER_S, self.abort)

    def cancel(self) -> None:
        """Cancels the running request, and closes the connection. If there is no response yet, a 503 is sent."""
        if self._cycle is None:
            self._close()
        else:
            self._cycle.cancel()

    def refuse(self, error: RequestError) -> None:
        """Answers an incomplete or unread request with an error, and closes the connection."""
        self._protocol.refuse(error)
        self._writer.write(self._protocol.take_outgoing())
        self._linger()

    # --- reading

    def _advance(self) -> None:
        """Parses the received data: starts to answer a request, or sets the timeout for the rest of one."""
        protocol = self._protocol
        request = protocol.next_request()
        self._writer.write(protocol.take_outgoing())
        held_too_much = self.reserve_memory(protocol.memory_bytes if request is None else 0)
        if request is not None:
            self._start_cycle(request)
        elif protocol.phase is Phase.CLOSED:
            self._linger()
        elif held_too_much:
            self.refuse(Unavailable("too many large requests at once", code="too_many_large_requests"))
        else:
            self._set_phase_timeout(protocol.phase)
            self.set_reading(not protocol.has_more)
            if protocol.has_more:
                self._server.parse_later(self._loop, self._continue_reading)

    def reserve_memory(self, size: int) -> bool:
        """Reports the bytes of an unfinished body, unless it is small; returns whether all together are too many."""
        if size < SMALL_BYTES:
            size = 0
        if size == self._reserved:
            return False
        fits = self._server.reserve_memory(size - self._reserved, self.client)
        self._reserved = size
        return size > 0 and not fits

    def _continue_reading(self) -> None:
        """Parses the rest of the buffer after other connections have had their turn."""
        if not self._discarding and self._cycle is None:
            self._advance()

    def _limit_ahead(self) -> None:
        """Pauses reading during a response while there are many pipelined bytes.

        A single read brings up to 256 KiB (asyncio's and uvloop's size), so a connection holds at most that much more.
        """
        self.set_reading(self._protocol.pipelined_bytes <= MAX_AHEAD_BYTES)

    def _set_phase_timeout(self, phase: Phase) -> None:
        """Starts the timeout of a phase, which counts from the start of the phase, not from the last byte."""
        if phase is self._timed_phase or (phase is Phase.IDLE and self._timed_phase is None) or self._surplus:
            return
        self._timed_phase = phase
        if phase is Phase.IDLE:
            self._idle_since = self._loop.time()
            self._server.limits.idle(self)
            self._deadline.set(self._config.keep_alive_timeout_s, self._close)
        elif phase is Phase.HEAD:
            self._deadline.set(self._config.header_timeout_s, self._request_timed_out)
        else:
            self._deadline.set(self._config.body_timeout_s, self._request_timed_out)

    def _request_timed_out(self) -> None:
        what = "headers" if self._protocol.phase is Phase.HEAD else "body"
        self.refuse(RequestTimeout(f"the request {what} did not arrive in time"))

    def set_reading(self, wanted: bool) -> None:
        """Pauses or resumes reading."""
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

    # --- responding

    def _start_cycle(self, request: Request) -> None:
        self._timed_phase = Phase.RESPONSE
        self._deadline.clear()
        self._protocol.closing |= self._server.draining or self._surplus
        self._server.active_requests += 1
        self._cycle = Http11Cycle(self._server.handle, self._protocol, self._writer, self.switch)
        self._cycle.start(self._loop, request).add_done_callback(self._cycle_done)
        self._limit_ahead()

    def switch(self, make: MakeConnection, response: Switch) -> SwitchedConnection:
        """Returns the other protocol's object for the connection, which receives what the client sends from now on."""
        switched = make(response, self._loop, self._writer, self, self._config.body_timeout_s)
        if not self._lost:
            self._switched = switched
            switched.feed(self._protocol.take_rest())
        return switched

    def _cycle_done(self, task: asyncio.Task[None]) -> None:
        """Closes the connection after the response is closed, or reads the next request."""
        self._server.request_finished()
        cycle, self._cycle, self._switched = self._cycle, None, None
        if self._discarding or cycle is None:
            return
        phase = self._protocol.phase
        if cycle.cancelled:
            self._send_shutting_down(cycle)
        elif phase is Phase.RESPONSE:
            self._truncate()
        elif phase is Phase.CLOSED:
            self._linger()
        elif phase is Phase.IDLE:  # the usual case: does the same as _advance in a third of the time
            self._set_phase_timeout(Phase.IDLE)
            self.set_reading(True)
        else:
            self._advance()

    def _send_shutting_down(self, cycle: Http11Cycle) -> None:
        if not cycle.started:
            error = Unavailable("the server is shutting down", code="shutting_down")
            self._writer.write(self._protocol.start_response(self._protocol.error_response(error)))
        self._close()

    def _truncate(self) -> None:
        """Closes the connection in the middle of a body, in a way that the peer notices."""
        if self._protocol.body_end_is_framed:
            self._close()
        else:
            self.abort()

    # --- closing

    def _check_stall(self) -> None:
        """Aborts the connection if the client has read nothing since the last check. A slow client is left alone."""
        if self._writer.progressed():
            self._deadline.set(self._config.stream_stall_timeout_s, self._check_stall)
        else:
            log.info("%s does not read its response; connection aborted", self._peer)
            self.abort()

    def _linger(self) -> None:
        """Closes the connection so that the peer can read the last response although it may still be sending."""
        self._protocol.discard()
        self.reserve_memory(0)
        if self._protocol.client_closes or self._lost:
            self._close()
            return
        self._discarding = True
        self.set_reading(True)
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        self._deadline.set(LINGER_S, self._close)

    def _close(self) -> None:
        """Closes the connection once everything is sent, or aborts it if the peer does not read."""
        self._discarding = True
        self._transport.close()
        if not self._lost:
            self._deadline.set(self._config.stream_stall_timeout_s, self.abort)

    def abort(self) -> None:
        """Drops the connection. A running request is cancelled when the transport reports the loss."""
        self._discarding = True
        self._transport.abort()


def tune(sock: socket.socket | None) -> None:
    """Turns off Nagle's delay (for TTFT), and turns on probes that notice a vanished peer in about two minutes."""
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


def peer_name(peer: Any) -> str:
    """Returns host:port for the address of an IP peer; "" for a Unix socket."""
    if not isinstance(peer, tuple):
        return "unix"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Http11Cycle(RequestResponseCycle):
    """The cycle of one request over HTTP/1.1. `started` says whether a part of the response has been sent."""

    def __init__(
        self,
        handle: Handle,
        protocol: ServerProtocol,
        writer: ResponseWriter,
        switch: Callable[[MakeConnection, Switch], SwitchedConnection],
    ) -> None:
        """Creates the cycle of a request.

        Args:
            handle: Answers the request.
            protocol: The protocol of the connection.
            writer: Writes the response.
            switch: Creates the other protocol's object for a connection that is switched.
        """
        super().__init__(handle, protocol.error_response)
        self.started = False
        self._protocol = protocol
        self._writer = writer
        self._switch = switch
        self._pending = b""  # of the response, not sent yet
        self._gone: asyncio.Future[None] | None = None

    async def send(self, response: Response) -> None:
        if isinstance(response, Switch):
            await self._upgrade(response)
            return
        protocol, body = self._protocol, response.body
        self._pending = protocol.start_response(response)
        if protocol.expects_body and not isinstance(body, bytes):
            await self._send_stream(body)
            if self.cancelled:
                return
            self._pending += protocol.end_body()
        self._write(self._pending)
        await self._writer.drain()  # before the next request is read: responses that are not read must not pile up

    async def _send_stream(self, body: ByteStream) -> None:
        """Sends the chunks of a stream. The head is sent together with the first chunk if that is ready.

        This takes one packet, and a failure before it can be a 500. Otherwise the head is sent at the end of this
        iteration of the loop, so that the client learns that its request was accepted.
        """
        head_first = asyncio.get_running_loop().call_soon(self._send_pending)
        try:
            await body.push_to(Sink(self._send_chunk, self._paused))
        finally:
            head_first.cancel()

    def _paused(self) -> asyncio.Future[None] | None:
        """Returns the writer's pause; a cancelled future if the client has left, as a body may ignore that."""
        if self.cancelled and self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
            self._gone.cancel()
        return self._gone or self._writer.paused

    def _send_chunk(self, data: bytes) -> None:
        if not data or self.cancelled:
            return
        data = self._protocol.chunk(data)
        if self._pending:
            data, self._pending = self._pending + data, b""
        self._write(data)

    def _send_pending(self) -> None:
        if self._pending and not self.cancelled:
            self._write(self._pending)
            self._pending = b""

    async def _upgrade(self, response: Switch) -> None:
        """Switches the connection to another protocol, and serves it until it ends."""
        other = self._protocol.other_protocol
        assert other is not None  # or no handler could have known the protocol
        try:
            make = await other.make_connection()
        except MissingExtra as error:
            response.status = error.status
            await self.send(self.error_response(error))
            return
        self._write(self._protocol.switch_protocol(response))
        await self._switch(make, response).serve()
        self._protocol.end_switched()

    async def send_failure(self) -> None:
        if not self.started and not self.cancelled:
            self._write(self._protocol.start_response(self.error_response(InternalError())))

    def _write(self, data: bytes) -> None:
        self.started = True
        self._writer.write(data)
