"""The server side of RFC 6455's frames without I/O: bytes to complete messages, and texts to bytes.

`websockets` parses and masks (in C: 6 us for a frame of 4 kB; wsproto 25 us, Python alone 18 us; 2026-11). It is in the
extra `realtime`, so this module must be imported lazily, at the first upgrade. What `websockets` leaves to its user is
done here: fragments are joined, and text is checked for valid UTF-8. No extension is offered, so nothing is compressed.

The rule of this module: for any bytes, however divided, the messages and the close are the same.
"""

from __future__ import annotations

import codecs
import logging

from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol, State

from ...transports.cycle import RequestBody
from .types import MAX_REASON_BYTES, Close, WebSocketMessage

PIECE_BYTES = 1 << 15
"""The most bytes of a frame that the parser gets at once; a multiple of the mask's 4 bytes, less than 64 KiB."""

_log = logging.Logger("lean_ovms.transports.frames", logging.ERROR)
"""A logger without debug lines, which would show clients' texts; not registered, so that nothing changes its level."""
_log.parent = logging.getLogger("lean_ovms.transports")

_utf_8 = codecs.getincrementaldecoder("utf-8")


_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class _Cutter:
    """Divides large frames into fragments; the parser copies and unmasks each in one call: 30 MB in 30 ms (2026-11)."""

    def __init__(self, max_message_bytes: int) -> None:
        self._most = max_message_bytes
        self._head = bytearray()  # the header of the next frame
        self._first = self._fin = 0  # of the large frame: its first byte without FIN, and FIN
        self._mask = b""
        self._rest = 0  # the remaining bytes of the large frame, except those in `_left`
        self._left = 0  # the remaining bytes that belong to the last header that was returned

    def cut(self, data: bytes) -> bytes:
        """Returns bytes with the same messages, but with large frames divided into fragments."""
        if self._left >= len(data):
            self._left -= len(data)
            return data
        out = bytearray()
        at = 0
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                out += part
                self._left -= len(part)
                at += len(part)
            elif self._rest:
                self._begin_piece(out)
            else:
                size = self._head_bytes()
                part = data[at : at + size - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == self._head_bytes():
                    self._begin_frame(out)
        return bytes(out)

    def _head_bytes(self) -> int:
        """Returns the size of the next frame's head as far as it is known.

        The mask is only needed for a frame that is divided.
        """
        known = len(self._head)
        size = 2 if known < 2 else 2 + {126: 2, 127: 8}.get(self._head[1] & 0x7F, 0)
        return size + 4 if size > 2 and known >= size and self._is_cut(size) else size

    def _is_cut(self, size: int) -> bool:
        """Returns whether the next frame should be divided: it is large, and not refused for its length."""
        return bool(self._head[1] & 0x80) and PIECE_BYTES < int.from_bytes(self._head[2:size], "big") <= self._most

    def _begin_frame(self, out: bytearray) -> None:
        head = bytes(self._head)
        self._head.clear()
        length = head[1] & 0x7F
        extended = {126: 4, 127: 10}.get(length, 2)
        if extended > 2:
            length = int.from_bytes(head[2:extended], "big")
        if len(head) > extended:
            self._first, self._fin, self._mask, self._rest = head[0] & 0x7F, head[0] & 0x80, head[-4:], length
        else:
            self._left = length + (4 if head[1] & 0x80 else 0)
            out += head

    def _begin_piece(self, out: bytearray) -> None:
        self._left = min(PIECE_BYTES, self._rest)
        self._rest -= self._left
        fin = 0 if self._rest else self._fin
        out += b"%c\xfe%b%b" % (self._first | fin, self._left.to_bytes(2, "big"), self._mask)
        self._first = Opcode.CONT


class Frames(Protocol):
    """Parses the frames of a connection, and creates frames to send. `feed` takes bytes, `take_outgoing` returns them.

    Frames are joined to messages as they are parsed, so that nothing after a text with invalid UTF-8 is answered.
    """

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__(SERVER, max_size=max_message_bytes, logger=_log)
        self._messages: list[WebSocketMessage] = []
        self._most = max_message_bytes
        self._parts = RequestBody(expected=max_message_bytes)
        self._text: codecs.IncrementalDecoder | None = None  # checks the current message if it is text
        self._cutter = _Cutter(max_message_bytes)
        self._freed = False

    @property
    def closing(self) -> bool:
        """Whether a close frame was sent or received, after which nothing more is sent."""
        return self.state is not State.OPEN

    @property
    def ended(self) -> bool:
        """Whether nothing more is received, because the client has closed the WebSocket or violated the protocol."""
        return self.eof_sent

    @property
    def unfinished_bytes(self) -> int:
        """The memory in bytes that an incomplete message takes."""
        return self._parts.tell() + len(self.reader.buffer)

    def feed(self, data: bytes) -> tuple[list[WebSocketMessage], int]:
        """Takes bytes; returns the messages that they complete, and the number of frames or fragments parsed."""
        if self._freed:
            return [], 0
        self.receive_data(self._cutter.cut(data))
        messages, self._messages = self._messages, []
        return messages, len(self.events_received())

    def recv_frame(self, frame: Frame) -> None:
        """Processes a frame like the base class. Raises UnicodeDecodeError, which closes the WebSocket with 1007."""
        super().recv_frame(frame)
        opcode = frame.opcode
        if opcode not in _DATA:
            return
        if opcode is not Opcode.CONT:
            self._text = _utf_8() if opcode is Opcode.TEXT else None
        if self._text is not None:
            self._text.decode(frame.data, frame.fin)
        self._parts.write(frame.data)
        if frame.fin:
            self._messages.append(WebSocketMessage(self._parts.getvalue(), self._text is not None))
            self._parts = RequestBody(expected=self._most)

    def text(self, data: bytes, *, first: bool = True, last: bool = True) -> None:
        """Sends a text message, or a fragment of one.

        Args:
            data: The text in UTF-8.
            first: Whether it is the first fragment.
            last: Whether it is the last fragment.
        """
        if not self.closing:
            (self.send_text if first else self.send_continuation)(data, fin=last)

    def ping(self) -> None:
        if not self.closing:
            self.send_ping(b"")

    def close(self, close: Close) -> None:
        """Sends a close frame, unless one has been sent already."""
        if not self.closing:
            reason = close.reason.encode()[:MAX_REASON_BYTES].decode("utf-8", "ignore")
            self.send_close(close.code, reason)

    def free(self) -> None:
        """Frees the received data; any further data is dropped. Idempotent."""
        self._freed = True
        self._messages.clear()
        self._parts.close()
        self.reader.buffer.clear()
        self.parser.close()  # its frame refers to this object, and the cycle would last until a garbage collection
        self.parser_exc = None

    def take_outgoing(self) -> bytes:
        """Returns the bytes to send. Each is returned once."""
        return b"".join(self.data_to_send())
