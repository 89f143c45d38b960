"""One request and its response over HTTP/1.1. Frames with a ServerProtocol and sends through a Writer.

Does not know asyncio's transports, nor what becomes of the connection afterwards.
"""

from __future__ import annotations

from ...errors import InternalError, RequestError
from ...types import Handle, Response
from ..cycle import RequestResponseCycle
from .protocol import ServerProtocol
from .writer import Writer


class Http11Cycle(RequestResponseCycle):
    """started: some of the response is sent."""

    def __init__(self, handle: Handle, protocol: ServerProtocol, writer: Writer) -> None:
        super().__init__(handle)
        self.started = False
        self._protocol = protocol
        self._writer = writer

    def error_response(self, error: RequestError) -> Response:
        return self._protocol.error_response(error)

    async def send(self, response: Response) -> None:
        protocol, writer, body = self._protocol, self._writer, response.body
        pending = protocol.start_response(response)
        if protocol.expects_body and not isinstance(body, bytes):
            # The head is sent together with the first chunk: one packet, and an early failure can still be a 500.
            async for data in body:
                if self.cancelled:
                    return
                if data:
                    self._write(pending + protocol.chunk(data))
                    pending = b""
                    if writer.paused is not None:  # checked first: awaiting a coroutine for nothing costs 0.1 us
                        await writer.drain()
            pending += protocol.end_body()
        self._write(pending)
        await writer.drain()  # before the next request is read: responses that are not read must not pile up

    async def send_failure(self) -> None:
        if not self.started and not self.cancelled:
            self._write(self._protocol.start_response(self.error_response(InternalError())))

    def _write(self, data: bytes) -> None:
        self.started = True
        self._writer.write(data)
