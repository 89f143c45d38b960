"""One request and its response over HTTP/1.1. Frames with a ServerProtocol and sends through a ResponseWriter.

Does not know asyncio's transports, nor what becomes of the connection afterwards.
"""

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
    """One request and its response over HTTP/1.1. `started` says whether some of the response is sent."""

    def __init__(
        self,
        handle: Handle,
        protocol: ServerProtocol,
        writer: ResponseWriter,
        switch: Callable[[MakeConnection, Switch], SwitchedConnection],
    ) -> None:
        """Makes the cycle of a request.

        Args:
            handle: Answers the request.
            protocol: The protocol of the connection.
            writer: Writes the response.
            switch: Makes the other protocol's side of a connection that is switched.
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
        """Sends the chunks. The head goes with the first one if that is ready: one packet, and a failure can be a 500.

        Else it goes at the end of this turn of the loop: the client learns that its request was accepted.
        """
        head_first = asyncio.get_running_loop().call_soon(self._send_pending)
        try:
            await body.push_to(Sink(self._send_chunk, self._paused))
        finally:
            head_first.cancel()

    def _paused(self) -> asyncio.Future[None] | None:
        """Returns the writer's pause; for a client that has left a cancelled future, as a body may ignore its
        cancellation."""
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
        """Switches the connection to another protocol, and serves it to its end."""
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
