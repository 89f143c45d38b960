"""One request and its response over HTTP/1.1, framed by a ServerProtocol and sent by a ResponseWriter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import InternalError, MissingExtra
from ...types import ByteStream, Handle, Response, Switch
from ...types.push import Sink
from ..cycle import RequestResponseCycle
from .protocol import ServerProtocol
from .writer import ResponseWriter

if TYPE_CHECKING:
    from .switching import MakeConnection, SwitchedConnection


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
