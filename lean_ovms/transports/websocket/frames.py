"""The server side of RFC 6455's frames, sans-IO: bytes in, whole messages out; texts in, bytes out.

`websockets` parses and masks (in C: 6 us a frame of 4 kB; wsproto 25, Python alone 18; 2026-11). It is the extra
`realtime`: import this module lazily, at the first upgrade. What `websockets` leaves to its user is done here:
fragments are joined, and text must be UTF-8. No extension is offered, so nothing is compressed.

The rule of this file: any bytes, in any cut, give the same messages and the same close.
"""

from __future__ import annotations

import logging

from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol, State

from ...websocket_types import MAX_REASON_BYTES, Close

_log = logging.Logger("lean_ovms.transports.frames", logging.ERROR)
"""Without debug lines, which would show what clients say. Not a registered logger, whose level a host could change."""
_log.parent = logging.getLogger("lean_ovms.transports")


class _Messages(Protocol):
    """Joins frames to messages as they are parsed: so what follows text that is not UTF-8 is not even answered."""

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__(SERVER, max_size=max_message_bytes, logger=_log)
        self.messages: list[str | bytes] = []
        self._parts = bytearray()
        self._is_text = False

    def recv_frame(self, frame: Frame) -> None:
        """As Protocol's. Raises UnicodeDecodeError, which closes with 1007."""
        super().recv_frame(frame)
        opcode = frame.opcode
        if opcode not in _DATA:
            return
        if opcode is not Opcode.CONT:
            self._is_text = opcode is Opcode.TEXT
        self._parts += frame.data
        if frame.fin:
            whole, self._parts = self._parts, bytearray()
            self.messages.append(whole.decode() if self._is_text else bytes(whole))


_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Frames:
    """feed bytes, then send take_outgoing.

    closing: a close frame was sent or received; nothing more is sent. ended: nothing more is received either, since the
    client has closed, or broke the protocol.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._protocol = _Messages(max_message_bytes)

    @property
    def closing(self) -> bool:
        return self._protocol.state is not State.OPEN

    @property
    def ended(self) -> bool:
        return self._protocol.eof_sent

    def feed(self, data: bytes) -> tuple[list[str | bytes], int]:
        """The messages that these bytes complete, and the number of frames in them."""
        protocol = self._protocol
        protocol.receive_data(data)
        messages, protocol.messages = protocol.messages, []
        return messages, len(protocol.events_received())

    def text(self, data: bytes) -> None:
        """Send a text message."""
        if not self.closing:
            self._protocol.send_text(data)

    def ping(self) -> None:
        if not self.closing:
            self._protocol.send_ping(b"")

    def close(self, close: Close) -> None:
        """Send a close frame, unless there was one."""
        if not self.closing:
            reason = close.reason.encode()[:MAX_REASON_BYTES].decode("utf-8", "ignore")
            self._protocol.send_close(close.code, reason)

    def take_outgoing(self) -> bytes:
        """Bytes to send. Each is returned once."""
        return b"".join(self._protocol.data_to_send())
